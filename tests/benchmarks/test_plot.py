"""The plot is drawn from a written result."""

import json
from xml.etree import ElementTree as ET

import pytest
import typer

from benchmarks.contest import Run
from benchmarks.plot import HEIGHT, WIDTH, main, median_line
from benchmarks.report import Results, store
from benchmarks.schedule import Play

SVG = "{http://www.w3.org/2000/svg}"


def stored(path, **growths):
    runs = [
        Run(play=Play(0, "W4", name), growth=growth, figures={"ttft_ms_at_8000": growth[-1][1]})
        for name, growth in growths.items()
    ]
    store(path, "python -m benchmarks", Results(runs=runs))


def test_every_server_has_a_line_with_its_name_inside_the_picture(tmp_path):
    stored(tmp_path / "r.json", ours=[(400, 90.0), (8000, 500.0)], peer=[(400, 480.0), (7900, 510)])
    main(tmp_path / "r.json", tmp_path / "plot.svg")
    root = ET.parse(tmp_path / "plot.svg").getroot()
    lines = root.findall(f"{SVG}polyline")
    assert len(lines) == 2
    for line in lines:
        for point in line.get("points").split():
            x, y = map(float, point.split(","))
            assert 0 < x < WIDTH
            assert 0 < y < HEIGHT
    names = {text.text: float(text.get("y")) for text in root.findall(f"{SVG}text")}
    assert abs(names["ours"] - names["peer"]) >= 12  # they don't cover each other


def test_runs_at_the_same_history_become_their_median():
    assert median_line([(810, 9.0), (790, 1.0), (820, 2.0), (400, 5.0)]) == [(400, 5), (800, 2)]


def test_a_result_without_a_growing_chat_can_not_be_drawn(tmp_path):
    (tmp_path / "r.json").write_text(json.dumps({"runs": []}))
    with pytest.raises(typer.BadParameter, match="no run of W4"):
        main(tmp_path / "r.json", tmp_path / "plot.svg")
