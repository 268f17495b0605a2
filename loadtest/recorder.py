"""Writes results of turns to a file, one per line, for `sessiond capacity`."""

import time
from pathlib import Path
from typing import BinaryIO

from loadtest.conversation import Met
from loadtest.scenarios import CrowdStage
from sessiond.capacity.observations import Seen, StageBegun, TurnSeen, encode


class Recorder:
    """Owns the file; without a path nothing is written."""

    def __init__(self, path: str | None) -> None:
        self._file: BinaryIO | None = None
        if path:
            self._file = Path(path).open("wb")  # noqa: SIM115 -- `close` closes it

    def stage_begun(self, stage: CrowdStage) -> None:
        """Record the start of a stage."""
        self._write(
            StageBegun(
                at_s=time.time(),
                users=stage.users,
                seconds=stage.seconds,
                length_tokens=stage.length_tokens,
            )
        )

    def turn(self, met: Met, users: int) -> None:
        """Record a finished turn."""
        stats = met.stats
        self._write(
            TurnSeen(
                at_s=time.time(),
                users=users,
                total_s=met.total_s,
                output_tokens=0 if stats is None else stats.output_tokens,
                ttft_s=met.ttft_s,
                inter_token_s=inter_token_s(met),
                warm=is_warm(met),
                refusals=met.refusals,
                lost=met.lost,
                code=met.code,
            )
        )

    def close(self) -> None:
        """Flush and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, seen: Seen) -> None:
        if self._file is not None:
            self._file.write(encode(seen))


def is_warm(met: Met) -> bool:
    """Whether the server kept or restored most of the KV of earlier turns."""
    stats = met.stats
    if stats is None or not met.continued:
        return False
    return stats.reused_tokens + stats.restored_tokens > stats.recomputed_tokens


def inter_token_s(met: Met) -> float | None:
    """Mean time between the tokens of a reply; None for a reply of less than two."""
    if met.stats is None or not met.stats.tokens_per_s:
        return None
    return 1 / met.stats.tokens_per_s
