"""Time to first token after a history of N tokens, on a server that keeps KV and one that doesn't.

One conversation per length: its history is prefilled once (`generate: false`), then short turns
follow. The two servers take turns within each repetition, so that noise meets both.
"""

import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.load_client import LoadClient
from benchmarks.texts import QUESTIONS, prose

_REPLY_TOKENS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TtftRow:
    """Medians in milliseconds at one length of history; ranges are (lowest, highest)."""

    history_tokens: int
    new_tokens: int
    kept_ms: float
    recomputed_ms: float
    kept_range_ms: tuple[float, float]
    recomputed_range_ms: tuple[float, float]
    kept_cached_tokens: int
    recomputed_cached_tokens: int

    @property
    def ratio(self) -> float:
        """How many times sooner the first token comes when KV is kept."""
        return self.recomputed_ms / self.kept_ms


async def measure_ttft(
    keeping_url: str, recomputing_url: str, history_tokens: int, repetitions: int
) -> TtftRow:
    """Measure one length of history.

    Raises:
        RuntimeError: a turn did not bring a reply.
    """
    fields: dict[str, Any] = {"temperature": 0, "max_output_tokens": _REPLY_TOKENS}
    async with (
        LoadClient(keeping_url, **fields) as kept,
        LoadClient(recomputing_url, **fields) as recomputed,
    ):
        for client in (kept, recomputed):
            await client.ask(prose(history_tokens), generate=False)
        samples = [
            (await _one(kept, question), await _one(recomputed, question))
            for question in QUESTIONS[:repetitions]
        ]
    with_kv, without_kv = ([pair[side] for pair in samples] for side in (0, 1))
    kept_ms, recomputed_ms = ([sample.ttft_ms for sample in one] for one in (with_kv, without_kv))
    return TtftRow(
        history_tokens=with_kv[0].input_tokens - with_kv[0].new_tokens,
        new_tokens=round(statistics.median(sample.new_tokens for sample in with_kv)),
        kept_ms=statistics.median(kept_ms),
        recomputed_ms=statistics.median(recomputed_ms),
        kept_range_ms=(min(kept_ms), max(kept_ms)),
        recomputed_range_ms=(min(recomputed_ms), max(recomputed_ms)),
        kept_cached_tokens=with_kv[-1].cached_tokens,
        recomputed_cached_tokens=without_kv[-1].cached_tokens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    ttft_ms: float
    input_tokens: int
    cached_tokens: int
    new_tokens: int


async def _one(client: LoadClient, question: str) -> _Sample:
    turn = await client.ask(question)
    stats = turn.end.stats if turn.end else None
    if stats is None or stats.ttft_s is None:
        raise RuntimeError(f"no reply: {turn.end}")
    return _Sample(
        ttft_ms=stats.ttft_s * 1e3,
        input_tokens=stats.reused_tokens + stats.recomputed_tokens + stats.new_tokens,
        cached_tokens=stats.reused_tokens,
        new_tokens=stats.new_tokens,
    )
