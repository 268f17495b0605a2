"""A chat of 300 turns in a window of 1,024 tokens: `python -m benchmarks.long_chat`.

The same chat over the socket under each context policy, each on a server of its own: time to first
token of turns with and without a trim, how often there is one, and memory. Right after every trim a
fresh conversation of the size of that turn begins, so that a trim and a prefill of what is kept are
measured side by side. `none` is refused once the window is full, from then on at
every turn.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.load_client import LoadClient
from benchmarks.machine import describe_machine
from benchmarks.plot import draw
from benchmarks.process_memory import MIB, children_of, pss_bytes
from benchmarks.server_process import running_server
from benchmarks.window_times import Prefill, Times, WindowFigures, WindowTurn, figures
from benchmarks.workloads import message
from engine.files.catalog import DEFAULT_MODEL, resolve_model
from sessiond.cli.chat_turn import ChatTurn

_RESULTS = Path(__file__).parent / "results"
_POLICIES: Mapping[str, Mapping[str, Any]] = {
    "sliding_window exact": {"type": "sliding_window", "fidelity": "exact"},
    "sliding_window shifted": {"type": "sliding_window", "fidelity": "shifted"},
    "last_turns exact": {"type": "last_turns", "turns": 20, "fidelity": "exact"},
    "token_budget": {"type": "token_budget"},
    "none": {"type": "none"},
}
_DRAWN = ("sliding_window exact", "sliding_window shifted")
_POOL = "128MiB"  # some 5,800 tokens: all of it has been written to soon, so that memory is flat
_MESSAGE_TOKENS, _REPLY_TOKENS = 14, 16
_OVERHEAD_TOKENS = 32  # system prompt and template of a fresh conversation


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedChat:
    """One policy's chat. `pss`: both processes after the first turn, half of them, and the last."""

    policy: str
    turns: Sequence[WindowTurn]
    prefills: Sequence[Prefill]
    pss: Sequence[int]


class WindowChat:
    """One chat under one policy; rows fill up while it runs."""

    def __init__(self, url: str, policy: Mapping[str, Any], pids: Sequence[int]) -> None:
        self._url, self._policy, self._pids = url, dict(policy), pids
        self._fields = {"temperature": 0, "max_output_tokens": _REPLY_TOKENS}
        self.turns: list[WindowTurn] = []
        self.prefills: list[Prefill] = []
        self.pss: list[int] = []

    async def run(self, count: int) -> None:
        """Play so many turns.

        Raises:
            RuntimeError: a turn ended in another way than by its length or a refusal.
        """
        async with LoadClient(self._url, **self._fields) as client:
            for number in range(count):
                self.turns.append(await self._turn(client, number))
                if number in {0, count // 2, count - 1}:
                    self.pss.append(sum(map(pss_bytes, self._pids)))
                if self.turns[-1].trimmed:
                    await self._prefill(self.turns[-1])

    async def _turn(self, client: LoadClient, number: int) -> WindowTurn:
        text = message("window", 0, number, _MESSAGE_TOKENS)
        turn, trimmed = await _ask(client, text, context_management=[self._policy])
        if turn.end is not None and turn.end.outcome == "refused":
            return WindowTurn(turn=number, refusal=turn.end.code)
        stats = turn.end.stats if turn.end else None
        if stats is None or stats.ttft_s is None:
            raise RuntimeError(f"turn {number} under {self._policy} brought no reply: {turn.end}")
        computed = stats.recomputed_tokens + stats.new_tokens
        return WindowTurn(
            turn=number,
            trimmed=trimmed,
            ttft_ms=1e3 * stats.ttft_s,
            input_tokens=stats.reused_tokens + computed,
            computed_tokens=computed,
            output_tokens=stats.output_tokens,
        )

    async def _prefill(self, trimmed: WindowTurn) -> None:
        tokens = trimmed.input_tokens - _OVERHEAD_TOKENS
        async with LoadClient(self._url, **self._fields) as client:
            turn, _ = await _ask(client, message("prefill", 0, trimmed.turn, tokens))
        stats = turn.end.stats if turn.end else None
        if stats is None or stats.ttft_s is None:
            raise RuntimeError(f"a prefill of {tokens} tokens brought no reply: {turn.end}")
        self.prefills.append(
            Prefill(
                turn=trimmed.turn,
                ttft_ms=1e3 * stats.ttft_s,
                computed_tokens=stats.recomputed_tokens + stats.new_tokens,
            )
        )


async def _ask(client: LoadClient, text: str, **fields: Any) -> tuple[ChatTurn, bool]:
    """Run one turn; also returns whether turns were dropped for it."""
    turn, trimmed = await client.send(text, **fields), False
    while turn.end is None:
        frame = await client.socket.recv()
        at_s = time.perf_counter()
        trimmed |= json.loads(frame)["type"] == "session.context_changed"
        turn.feed(frame, at_s=at_s)
    client.tip = turn.end.tip or client.tip
    return turn, trimmed


def play(folder: Path, name: str, *, turns: int, window: int) -> PlayedChat:
    """Start a server, play one policy's chat on it."""
    flags = ["--max-model-len", str(window), "--kv-cache-memory", _POOL, "--ignore-eos"]
    with running_server(folder, flags) as server:
        pids = [server.process.pid, *children_of(server.process.pid)]
        chat = WindowChat(server.url, _POLICIES[name], pids)
        asyncio.run(chat.run(turns))
    return PlayedChat(policy=name, turns=chat.turns, prefills=chat.prefills, pss=chat.pss)


def table_of(chats: Mapping[str, WindowFigures], pss: Mapping[str, Sequence[int]]) -> Table:
    """Policies across, figures down."""
    table = Table("TTFT in ms: median (p95)", *chats)
    rows = {
        "turns": [str(one.turns) for one in chats.values()],
        "refused, from turn": [_refused(one) for one in chats.values()],
        "turns with a trim": [f"{one.trims} ({one.trims_per_turn:.1%})" for one in chats.values()],
        "longest context, reply": [
            f"{one.longest_context_tokens}, {one.longest_reply_tokens}" for one in chats.values()
        ],
        "first quarter, no trim": [_in_words(one.first_quarter) for one in chats.values()],
        "second quarter": [_in_words(one.second_quarter) for one in chats.values()],
        "last quarter": [_in_words(one.last_quarter) for one in chats.values()],
        "last / first": [_ratio(one.last_to_first) for one in chats.values()],
        "last / second": [_ratio(one.last_to_second) for one in chats.values()],
        "turns with a trim, TTFT": [_in_words(one.trimmed) for one in chats.values()],
        "  tokens computed": [str(one.trimmed_computed_tokens) for one in chats.values()],
        "  / last quarter": [_ratio(one.trimmed_to_plain) for one in chats.values()],
        "fresh prefill, TTFT": [_in_words(one.prefill) for one in chats.values()],
        "  tokens computed, fresh": [str(one.prefill_computed_tokens) for one in chats.values()],
        "trim / fresh prefill, in pairs": [
            _ratio(one.trimmed_to_prefill) for one in chats.values()
        ],
        "PSS, MB: first, half, last": [
            ", ".join(f"{size / MIB:.0f}" for size in pss[name]) for name in chats
        ],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    return table


def _refused(one: WindowFigures) -> str:
    if one.first_refusal is None:
        return "0"
    codes = ", ".join(f"{count} {code}" for code, count in one.refusals.items())
    return f"{codes}, from {one.first_refusal}"


def _in_words(times: Times | None) -> str:
    return "-" if times is None else f"{times.median_ms:.1f} ({times.p95_ms:.1f})"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def picture(chats: Sequence[PlayedChat]) -> str:
    """TTFT against the turn's number, an SVG."""
    lines = {
        chat.policy.removeprefix("sliding_window "): [
            (float(turn.turn), turn.ttft_ms) for turn in chat.turns if turn.refusal is None
        ]
        for chat in chats
        if chat.policy in _DRAWN
    }
    title = "Time to first token of each turn in a window of 1,024 tokens, milliseconds"
    return draw(lines, title=title, x_title="turn")


def main(
    *,
    turns: Annotated[int, typer.Option(min=8, help="Turns of each chat.")] = 300,
    window: Annotated[int, typer.Option(min=512, help="Tokens that the model sees.")] = 1024,
    plot: Annotated[Path | None, typer.Option(help="Where the SVG of TTFT goes.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where the JSON goes.")] = None,
) -> None:
    """Play the chat under each policy; print the figures; write JSON."""
    resolve_model(DEFAULT_MODEL)
    chats: list[PlayedChat] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in _POLICIES:
            chats.append(play(Path(folder) / name, name, turns=turns, window=window))
            print(f"{name}: done", flush=True)
    found = {chat.policy: figures(chat.turns, chat.prefills) for chat in chats}
    console = Console(width=150)
    console.print(describe_machine())
    console.print(table_of(found, {chat.policy: chat.pss for chat in chats}))
    if plot is not None:
        plot.write_text(picture(chats))
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H%M%SZ")
    path = output or _RESULTS / f"long-chat-{stamp}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "command": " ".join(["python -m benchmarks.long_chat", *sys.argv[1:]]),
        "machine": describe_machine(),
        "window": window,
        "figures": {name: asdict(one) for name, one in found.items()},
        "chats": [asdict(chat) for chat in chats],
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
    print(f"Written to {path}")


if __name__ == "__main__":
    typer.run(main)
