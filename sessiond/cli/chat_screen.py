"""Output of a chat. Replies go to standard output; in scripts the rest to standard error."""

import re
from collections.abc import Mapping
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sessiond.cli.chat_turn import TurnEnd, TurnStats

# a reply is untrusted text: none of its escape sequences may reach the terminal
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_TAB = 8
_WIDE = 2  # cells of a CJK character or an emoji, around which a line may break without a space


class Screen:
    """Prints a chat. `interactive`: a person at a terminal, not a script."""

    def __init__(self, *, interactive: bool) -> None:
        self._interactive = interactive
        self._replies = Console(highlight=False, soft_wrap=True)
        self._remarks = self._replies if interactive else Console(stderr=True, highlight=False)
        self._wrap = WordWrap() if interactive and self._replies.is_terminal else None
        self._at_line_start = True

    def reply(self, text: str) -> None:
        """Show a part of a reply immediately."""
        clean = printable(text)
        if not clean:
            return
        replies = self._replies
        shown = self._wrap.feed(clean, replies.width) if self._wrap else clean
        replies.out(shown, end="", highlight=False)
        replies.file.flush()
        self._at_line_start = clean.endswith("\n")

    def remark(self, text: str) -> None:
        """Show a line that is not part of a reply."""
        self._end_line()
        self._remarks.print(Text(printable(text), style="dim"), soft_wrap=True)

    def problem(self, text: str) -> None:
        """Show an error line."""
        self._end_line()
        self._remarks.print(Text(printable(text), style="red"), soft_wrap=True)

    def turn_end(self, end: TurnEnd) -> None:
        """Show how a turn ended, with its statistics."""
        self._end_line()
        if end.outcome in ("failed", "refused", "cut"):
            self.problem(describe_fault(end))
        elif end.stats is not None:
            self.remark(f"[{describe_stats(end.stats, end.detail)}]")
        elif end.detail:
            self.remark(f"[{end.detail}]")

    def session(self, session: Mapping[str, Any]) -> None:
        """Show a session's memory: one line of totals, one row per item."""
        self._end_line()
        self._remarks.print(Text(describe_session(session)), soft_wrap=True)
        names = ("role", "start", "tokens", "kept", "status", "response_id")
        table = Table(*names[:-1], box=None, padding=(0, 1, 0, 0))
        table.add_column("response", no_wrap=True)  # uncut, for copying
        for turn in session.get("turns") or []:
            table.add_row(*[Text(printable(str(turn.get(name, "")))) for name in names])
        if table.row_count:
            self._remarks.print(table)

    def _end_line(self) -> None:
        if not self._at_line_start:
            self.reply("\n")


class WordWrap:
    """Breaks a streamed text at spaces, so that a terminal splits no word at its edge. Pure.

    Takes a text that begins at the left edge, in parts of any size, and holds nothing back.
    A word that outgrows its line is erased there and begins the next one.
    """

    def __init__(self) -> None:
        self._column = 0
        self._word = ""  # shown so far

    def feed(self, text: str, width: int) -> str:
        """Return what to write to a terminal of `width` cells."""
        return "".join(self._one(char, width) for char in text)

    def _one(self, char: str, width: int) -> str:
        if char == "\n":
            self._column, self._word = 0, ""
            return char
        if char.isspace():
            return self._space(char, width)
        cells = cell_len(char)
        if cells == _WIDE:
            self._word = ""
        shown = self._break() + char if self._column + cells > width else char
        self._column += cells
        self._word = "" if cells == _WIDE else self._word + char
        return shown

    def _space(self, char: str, width: int) -> str:
        self._word = ""
        cells = _TAB - self._column % _TAB if char == "\t" else 1
        if self._column + cells > width:
            return ""  # the next word begins a line anyhow
        self._column += cells
        return char

    def _break(self) -> str:
        """Begin a line, with the word if it does not fill the whole line before."""
        start = self._column - cell_len(self._word)
        if start == 0:
            self._column, self._word = 0, ""
            return "\n"
        self._column = cell_len(self._word)
        return f"\x1b[{start + 1}G\x1b[K\n{self._word}" if self._word else "\n"


def printable(text: str) -> str:
    """Return the text without control characters other than newline and tab."""
    return _CONTROLS.sub("", text)


def describe_stats(stats: TurnStats, detail: str = "") -> str:
    """Format a turn's statistics as one line."""
    parts = [detail] if detail else []
    parts.append(f"reused {stats.reused_tokens}")
    if stats.restored_tokens:
        parts.append(f"restored {stats.restored_tokens} from {printable(stats.restored_from)}")
    if stats.recomputed_tokens:
        parts.append(f"recomputed {stats.recomputed_tokens}")
    parts += [f"new {stats.new_tokens}", f"reply {stats.output_tokens} tokens"]
    if stats.ttft_s is not None:
        parts.append(f"first token {stats.ttft_s:.2f} s")
    if stats.tokens_per_s is not None:
        parts.append(f"{stats.tokens_per_s:.1f} tokens/s")
    return " · ".join(parts)


def describe_fault(end: TurnEnd) -> str:
    """Format a turn's error and the state of the conversation."""
    code = f" ({end.code})" if end.code else ""
    match end.outcome:
        case "refused":
            return f"refused{code}: {end.detail}"
        case "failed":
            return f"failed{code}: {end.detail}; the conversation is as before this turn"
        case _:
            return f"cut: {end.detail}; the conversation is as before this turn"


def describe_session(session: Mapping[str, Any]) -> str:
    """Format a session's memory as one line."""
    blocks, kv_bytes = session.get("blocks") or {}, session.get("kv_bytes") or {}
    return (
        f"{session.get('id')} · {session.get('state')} · context {session.get('context', 'full')}, "
        f"{session.get('fidelity', 'exact')} · {session.get('tokens_total')} tokens, "
        f"{session.get('tokens_kept')} seen by the model · {blocks.get('device')} blocks "
        f"({blocks.get('shared')} shared) · {_mebibytes(kv_bytes.get('device'))}"
        + "".join(
            f" · {blocks[tier]} blocks in the {tier} tier"
            for tier in ("host", "disk")
            if blocks.get(tier)
        )
    )


def _mebibytes(count: object) -> str:
    return f"{count / 2**20:.1f} MiB" if isinstance(count, int) else "? MiB"
