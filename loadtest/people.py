"""Simulated people: their messages, think times and reply lengths. Pure, by seed.

Texts come from real dialogues, think times and reply lengths from a trace of a chat service
(BurstGPT: gaps between turns of one conversation, median about two minutes, long tail). With a
trace of one's own, lengths and think times are those of its sessions.
"""

import csv
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from engine.simulation.trace import Request, read_trace

DATA = Path(__file__).parent / "data"
_LONGEST_THINK_S = 1800.0  # a longer gap ends a conversation
_FEWEST_TOKENS = 8


@dataclass(frozen=True, slots=True)
class Said:
    """One turn: its message, the limit of its reply, and the think time after it."""

    text: str
    max_output_tokens: int
    think_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """Distributions to draw from: dialogues (texts of the user), gaps in s, reply lengths."""

    dialogues: Sequence[Sequence[str]]
    gaps_s: Sequence[float]
    reply_tokens: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTurn:
    """One turn of a session of a trace: lengths in tokens, and the time until the next turn."""

    new_tokens: int
    reply_tokens: int
    gap_s: float


def load_trace(path: Path) -> list[list[TracedTurn]]:
    """Read the sessions of a trace, as `sessiond simulate` reads them.

    Raises:
        TraceError: the file can't be read.
    """
    sessions: dict[str, list[Request]] = {}
    for request in sorted(read_trace(path).requests, key=lambda request: request.at_s):
        sessions.setdefault(request.session, []).append(request)
    return [_turns(requests) for requests in sessions.values()]


def _turns(requests: Sequence[Request]) -> list[TracedTurn]:
    ends = [request.at_s for request in requests[1:]] + [requests[-1].at_s]
    return [
        TracedTurn(
            new_tokens=request.new_tokens,
            reply_tokens=request.reply_tokens,
            gap_s=min(end - request.at_s, _LONGEST_THINK_S),
        )
        for request, end in zip(requests, ends, strict=True)
    ]


def load_habits(folder: Path = DATA) -> Habits:
    """Read the data that comes with the load tests."""
    dialogues = [
        [turn["text"] for turn in json.loads(line)["turns"] if turn["role"] == "user"]
        for line in (folder / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    with (folder / "burstgpt.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(row["session"], []).append(float(row["t"]))
    gaps = [later - earlier for each in times.values() for earlier, later in pairwise(each)]
    return Habits(
        dialogues=dialogues,
        gaps_s=sorted(gap for gap in gaps if gap <= _LONGEST_THINK_S),
        reply_tokens=sorted(int(row["output_len"]) for row in rows),
    )


class Person:
    """Generates conversations, one after the other; the same ones for the same seed.

    `time_scale` shortens think times, so that a test takes minutes, not hours. `most_tokens`:
    maximum reply length. `traced`: sessions to draw from instead of dialogues.
    """

    def __init__(
        self,
        habits: Habits,
        seed: int,
        *,
        time_scale: float = 1.0,
        most_tokens: int = 256,
        traced: Sequence[Sequence[TracedTurn]] = (),
    ) -> None:
        self._habits = habits
        self._random = random.Random(seed)  # noqa: S311 -- generates load, not secrets
        self._time_scale = time_scale
        self._most_tokens = most_tokens
        self._traced = traced

    def conversation(self, opening_tokens: int = 0) -> Iterator[Said]:
        """The turns of the next conversation, the first with a document of `opening_tokens`.

        Each starts with a random number: otherwise a repeated dialogue would hit the KV of an
        earlier one, and the server would look faster than it is.
        """
        turns = self._of_trace() if self._traced else self._of_dialogue()
        for index, said in enumerate(turns):
            if opening_tokens and index == 0:
                document = self.document(opening_tokens)
                yield replace(said, text=f"{document}\n\n{said.text}")
            else:
                yield said

    def _of_dialogue(self) -> Iterator[Said]:
        draw = self._random
        dialogue = list(draw.choice(self._habits.dialogues))
        dialogue[0] = f"{draw.randrange(10**9)}: {dialogue[0]}"
        for text in dialogue:
            wanted = draw.choice(self._habits.reply_tokens)
            yield Said(
                text=text,
                max_output_tokens=max(_FEWEST_TOKENS, min(wanted, self._most_tokens)),
                think_s=draw.choice(self._habits.gaps_s) * self._time_scale,
            )

    def _of_trace(self) -> Iterator[Said]:
        for turn in self._random.choice(self._traced):
            yield Said(
                text=self.document(turn.new_tokens),
                max_output_tokens=max(1, min(turn.reply_tokens, self._most_tokens)),
                think_s=turn.gap_s * self._time_scale,
            )

    def document(self, tokens: int) -> str:
        """A text of about `tokens` tokens, made of messages."""
        words: list[str] = []
        while len(words) < tokens * 3 // 4:  # a token is about three quarters of a word
            words += " ".join(self._random.choice(self._habits.dialogues)).split()
        return " ".join([f"{self._random.randrange(10**9)}:", *words[: max(1, tokens * 3 // 4)]])
