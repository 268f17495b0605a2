"""The page of `sessiond top`. Pure: built from a sample, rates and the selection."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import ConsoleDimensions, Group, RenderableType
from rich.table import Table
from rich.text import Text

from engine.system.byte_size import format_bytes
from sessiond.cli.chat_screen import printable
from sessiond.cli.scrape import Between, Sample
from sessiond.cli.tables import ago, kv_text
from sessiond.cli.top.state import HELP, Session, TopState, shown

_BAR, _POOL_WORDS = 48, 72
_STATES = (("active", "green"), ("cached", "cyan"), ("free", "bright_black"))
_SPARKS = "▁▂▃▄▅▆▇█"
_LINES_ABOVE_SESSIONS = 12
_WIDE = 110  # terminal columns from which whole ids are shown


@dataclass(frozen=True, slots=True, kw_only=True)
class TopHistory:
    """Latest values of the plotted lines, oldest first."""

    tokens_per_s: tuple[float, ...] = ()
    waiting: tuple[float, ...] = ()
    pool_use: tuple[float, ...] = ()

    def with_sample(self, sample: Sample, between: Between, keep: int = 60) -> "TopHistory":
        """Add a sample and drop the oldest beyond `keep`."""
        total = max(1, int(sample.capacity["total_blocks"]))
        used = int(sample.capacity["active_blocks"]) / total
        rate = between.rate("sessiond_generated_tokens_total")
        return TopHistory(
            tokens_per_s=(*self.tokens_per_s, rate)[-keep:],
            waiting=(*self.waiting, float(sample.capacity["waiting"]))[-keep:],
            pool_use=(*self.pool_use, used)[-keep:],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopView:
    """Data of the server `where`. `detail` is the chosen session, with its turns."""

    where: str
    sample: Sample
    between: Between
    history: TopHistory
    detail: Session | None = None


def top_page(view: TopView, state: TopState, size: ConsoleDimensions) -> Group:
    """Build the whole page, at most as high as `size`."""
    sample, between = view.sample, view.between
    return Group(
        Text.assemble(("sessiond top", "bold"), f"  {view.where}"),
        _pool(sample.capacity, min(_BAR, size.width - _POOL_WORDS)),
        _tiers(sample),
        "",
        _turns(sample, between),
        _times(between),
        _lines(view.history),
        "",
        *_below(view, state, size),
    )


def _pool(capacity: Mapping[str, Any], width: int) -> Text:
    total = max(1, int(capacity["total_blocks"]))
    bar = Text("pool  ")
    ends = 0.0
    drawn = 0
    for name, colour in _STATES:
        ends += int(capacity[f"{name}_blocks"]) / total * width
        bar.append("█" * (round(ends) - drawn), style=colour)
        drawn = round(ends)
    for name, colour in _STATES:
        bar.append(f"  {capacity[f'{name}_blocks']} {name}", style=colour)
    block = int(capacity["block_size"]) * int(capacity["kv_bytes_per_token"])
    bar.append(f"  of {total} blocks ({format_bytes(total * block)})", style="dim")
    return bar


def _tiers(sample: Sample) -> Text:
    blocks = {
        tier: (
            sample.value("sessiond_kv_blocks", tier=tier, state="cached"),
            sample.value("sessiond_kv_blocks", tier=tier, state="free"),
        )
        for tier in ("host", "disk")
    }
    parts = [
        f"{tier} {cached:.0f} of {cached + free:.0f} blocks"
        for tier, (cached, free) in blocks.items()
        if cached + free
    ]
    return Text(f"tiers {', '.join(parts) or 'none'}", style="dim" if not parts else "")


def _turns(sample: Sample, between: Between) -> Text:
    sessions = sample.capacity["sessions"]
    reused = between.rate("sessiond_prefill_tokens_total", source="reused")
    prompt = between.rate("sessiond_prefill_tokens_total")
    moved = {
        way: sum(
            between.rate("sessiond_swap_bytes_total", direction=way, tier=tier)
            for tier in ("host", "disk")
        )
        for way in ("out", "in")
    }
    return Text(
        f"turns {sample.capacity['running']} running, {sample.capacity['waiting']} waiting   "
        f"in memory {sessions['live']} sessions, {sessions['idle']} idle, "
        f"{sessions['parked']} parked   "
        f"sockets {sample.value('sessiond_websocket_connections'):.0f}\n"
        f"per second {between.rate('sessiond_generated_tokens_total'):.1f} tokens generated, "
        f"{prompt:.0f} of input ({_share(reused, prompt)} reused), "
        f"{format_bytes(int(moved['out']))} out, {format_bytes(int(moved['in']))} in"
    )


def _times(between: Between) -> Text:
    name = "sessiond_time_to_first_token_seconds"
    found = [
        f"{path} {_ms(between.quantile(name, 0.5, path=path))} / "
        f"{_ms(between.quantile(name, 0.99, path=path))}"
        for path in ("warm", "cold")
    ]
    between_tokens = [
        _ms(between.quantile("sessiond_inter_token_latency_seconds", share))
        for share in (0.5, 0.99)
    ]
    return Text(
        f"first token, p50 / p99: {', '.join(found)}   between tokens: {' / '.join(between_tokens)}"
    )


def _lines(history: TopHistory) -> Text:
    most = max(history.tokens_per_s, default=0.0)
    text = Text("tokens/s ").append(spark(history.tokens_per_s), style="green")
    text.append(f" up to {most:.0f}   waiting ", style="dim")
    text.append(spark(history.waiting), style="yellow")
    text.append("   pool ", style="dim").append(spark(history.pool_use, most=1.0), style="cyan")
    return text


def spark(values: Sequence[float], *, most: float | None = None, width: int = 24) -> str:
    """Draw a line of block characters; the highest value (or `most`) is a full block."""
    top = most or max(values, default=0.0) or 1.0
    last = values[-width:]
    steps = len(_SPARKS) - 1
    return "".join(_SPARKS[round(min(max(v / top, 0.0), 1.0) * steps)] for v in last)


def _below(view: TopView, state: TopState, size: ConsoleDimensions) -> list[RenderableType]:
    lines = max(3, size.height - _LINES_ABOVE_SESSIONS)
    if state.inspecting and view.detail is not None:
        body: RenderableType = _session(view.detail, lines)
    else:
        found = shown(state, view.sample.sessions)
        id_length = 64 if size.width >= _WIDE else 14
        body = _table(found, state, view.sample.at_s, TableSize(lines=lines, id_length=id_length))
    return [body, _footer(state)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSize:
    """How much of the sessions is shown: rows and characters of their ids."""

    lines: int
    id_length: int


def _table(found: Sequence[Session], state: TopState, now_s: float, cut: TableSize) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("session", no_wrap=True)
    for name in ("user", "state", "tier"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens", "kept", "memory", "active"):
        table.add_column(name, no_wrap=True, justify="right")
    ids = [each.get("id") for each in found]
    at = ids.index(state.chosen) if state.chosen in ids else 0
    first = max(0, min(at - cut.lines // 2, len(found) - cut.lines))
    for each in found[first : first + cut.lines]:
        table.add_row(
            _short(str(each.get("id")), cut.id_length),
            *(printable(str(each.get(key) or "")) for key in ("user", "state", "tier")),
            str(each.get("tokens_total")),
            str(each.get("tokens_kept")),
            kv_text(each),
            ago(each.get("last_active_at"), now_s),
            style="reverse" if each.get("id") == state.chosen else "",
        )
    return table


def _session(session: Session, lines: int) -> Group:
    kv = session.get("kv_bytes") or {}
    held = ", ".join(f"{name} {format_bytes(int(size))}" for name, size in kv.items())
    head = (
        f"{session.get('id')}  {session.get('state')} of {session.get('user')}\n"
        f"policy {session.get('policy')}, {session.get('fidelity')}, "
        f"retention {session.get('retention')}\n"
        f"KV: {held or 'none'}"
    )
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("turn", "role", "start", "tokens", "kept", "status"):
        table.add_column(name, no_wrap=True)
    for turn in list(session.get("turns") or [])[-max(1, lines - 5) :]:
        keys = ("response_id", "role", "start", "tokens", "kept", "status")
        table.add_row(*(str(turn.get(key)) for key in keys))
    return Group(Text(printable(head)), table)


def _footer(state: TopState) -> Text:
    if state.asked is not None:
        return Text(f"{state.asked} {state.chosen}? y: yes, any other key: no", style="yellow")
    if state.typing:
        return Text(f"search: {state.wanted}▏", style="bold")
    if state.message:
        return Text(printable(state.message), style="yellow")
    search = f"  search: {state.wanted}" if state.wanted else ""
    return Text(f"{HELP}   by {state.sort}{search}", style="dim")


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _ms(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f} ms" if seconds < 10 else f"{seconds:.0f} s"
