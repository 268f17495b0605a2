"""TTFT against history as an SVG: `python -m benchmarks.plot RESULT.json OUTPUT.svg`.

The turns of the chat that grows (W4), median of the repetitions, one line per server.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated
from xml.sax.saxutils import escape

import typer

from benchmarks.report import load_growth

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 600, 44, 350
_COLOURS = ("#0b7a4b", "#c2410c", "#1d4ed8", "#7e22ce", "#525252")
_TITLE = "Time to first token of a turn of 410 tokens, milliseconds"
_FONT = "font-family='system-ui, sans-serif' font-size='13'"


def main(
    result: Annotated[Path, typer.Argument(help="A JSON file of `python -m benchmarks`.")],
    output: Annotated[Path, typer.Argument(help="Where the SVG goes.")],
) -> None:
    """Draw."""
    lines = {server: median_line(points) for server, points in load_growth(result).items()}
    if not lines:
        raise typer.BadParameter(f"{result} has no run of W4")
    output.write_text(draw(lines, title=_TITLE, x_title="prompt, tokens"))


def median_line(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """Points in order of their tokens; those of several runs at the same place as their median."""
    places: dict[int, list[float]] = {}
    for tokens, value in points:
        places.setdefault(round(tokens, -2), []).append(value)
    return [(place, statistics.median(places[place])) for place in sorted(places)]


def draw(lines: Mapping[str, Points], *, title: str, x_title: str) -> str:
    """An SVG of lines from (x, milliseconds), both axes from 0; `title` is that of the y axis."""
    top_x = _ceiling(max(x for points in lines.values() for x, _ in points))
    top_y = _ceiling(max(y for points in lines.values() for _, y in points))
    body = [
        _label(_LEFT, 24, title),
        _label((_LEFT + _RIGHT) / 2, _BOTTOM + 38, x_title, anchor="middle"),
        *_axes(top_x, top_y),
    ]
    ends: list[float] = []
    for (name, points), colour in zip(lines.items(), _COLOURS, strict=False):
        places = [(_x(x, top_x), _y(y, top_y)) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='2.5'/>")
        end = _apart(places[-1][1], ends)
        ends.append(end)
        body.append(_label(places[-1][0] + 8, end + 4, name, colour=colour))
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' {_FONT}>"
    ground = f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>"  # also on a dark page
    return "\n".join([head, ground, *body, "</svg>\n"])


def _axes(top_x: float, top_y: float) -> Iterator[str]:
    for step in range(5):
        value = top_y * step / 4
        y = _y(value, top_y)
        yield f"<line x1='{_LEFT}' x2='{_RIGHT}' y1='{y:.1f}' y2='{y:.1f}' stroke='#ddd'/>"
        yield _label(_LEFT - 8, y + 4, f"{value:,.0f}", anchor="end")
        place = top_x * step / 4
        yield _label(_x(place, top_x), _BOTTOM + 18, f"{place:,.0f}", anchor="middle")


def _label(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#333") -> str:
    place = f"x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' fill='{colour}'"
    return f"<text {place}>{escape(text)}</text>"


def _x(value: float, top: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / top


def _y(value: float, top: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * value / top


def _ceiling(value: float) -> float:
    """The next number above that four steps divide well."""
    power = 1.0
    while value > 40 * power:
        power *= 10
    return next(power * top for top in (4, 6, 8, 12, 16, 20, 24, 32, 40) if value <= power * top)


def _apart(y: float, taken: Sequence[float]) -> float:
    """A place for a label near `y` that is 16 away from every other: above, off the axis."""
    while any(abs(y - other) < 16 for other in taken):
        y -= 4
    return y


if __name__ == "__main__":
    typer.run(main)
