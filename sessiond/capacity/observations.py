"""What was seen while load was on a server, as lines of JSON that a load test writes."""

from collections.abc import Iterable
from pathlib import Path

import msgspec


class TurnSeen(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A turn that a user was through with. Seconds since the epoch; times from the first try.

    `refusals` counts tries that the server shed. `lost`: it was given up, and its conversation
    with it.
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
    """One look at the server. `*_total` are counters of its metrics."""

    at_s: float
    total_blocks: int
    active_blocks: int
    running: int
    waiting: int
    block_bytes: int
    evictions_total: float = 0.0
    preemptions_total: float = 0.0


class StageBegun(msgspec.Struct, frozen=True, kw_only=True, tag="stage"):
    """From now on so many users talk, for so long."""

    at_s: float
    users: int
    seconds: float


Seen = TurnSeen | ServerSeen | StageBegun

_decoder = msgspec.json.Decoder(Seen)


def encode(seen: Seen) -> bytes:
    """One line."""
    return msgspec.json.encode(seen) + b"\n"


def read(path: Path) -> list[Seen]:
    """All lines of a file, by their time; a last line that was cut is left out."""
    return sorted(_decoded(path.read_bytes().splitlines(keepends=True)), key=lambda seen: seen.at_s)


def _decoded(lines: Iterable[bytes]) -> Iterable[Seen]:
    for line in lines:
        if line.endswith(b"\n"):
            yield _decoder.decode(line)
