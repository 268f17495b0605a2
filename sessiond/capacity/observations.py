"""Observations of a load test, as lines of JSON that it writes."""

from collections.abc import Iterable
from pathlib import Path

import msgspec


class TurnSeen(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A finished turn of a user. Unix seconds; latencies count from the first attempt.

    `refusals` counts attempts that the server shed. `lost`: the user gave up the turn and its
    conversation.
    """

    at_s: float
    users: int
    total_s: float
    output_tokens: int = 0
    ttft_s: float | None = None
    inter_token_s: float | None = None
    warm: bool = False
    refusals: int = 0
    lost: bool = False
    code: str = ""


class ServerSeen(msgspec.Struct, frozen=True, kw_only=True, tag="server"):
    """One sample of the server. `*_total` are counters of its metrics."""

    at_s: float
    total_blocks: int
    active_blocks: int
    running: int
    waiting: int
    block_bytes: int
    evictions_total: float = 0.0
    preemptions_total: float = 0.0


class StageBegun(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """The start of a stage with a number of users and a duration.

    Conversations begin with `length_tokens` before the first question.
    """

    at_s: float
    users: int
    seconds: float
    length_tokens: int = 0


Seen = TurnSeen | ServerSeen | StageBegun

_decoder = msgspec.json.Decoder(Seen)


def encode(seen: Seen) -> bytes:
    """Encode an observation as one line."""
    return msgspec.json.encode(seen) + b"\n"


def read(path: Path) -> list[Seen]:
    """Read all lines of a file, ordered by time; an incomplete last line is ignored."""
    return sorted(_decoded(path.read_bytes().splitlines(keepends=True)), key=lambda seen: seen.at_s)


def _decoded(lines: Iterable[bytes]) -> Iterable[Seen]:
    for line in lines:
        if line.endswith(b"\n"):
            yield _decoder.decode(line)
