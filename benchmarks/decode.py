"""Decode tokens per second with 1, 8 and 32 sessions writing together, through the socket."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass

from benchmarks.load_client import LoadClient
from benchmarks.texts import LONG_TASK
from sessiond.cli.chat_turn import ChatTurn


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRow:
    """`tokens_per_s` is the sum over all streams, each from its first to its last token."""

    sessions: int
    output_tokens: int
    tokens_per_s: float
    tokens_per_s_each: float
    wall_s: float


async def measure_decode(url: str, sessions: int, reply_tokens: int) -> DecodeRow:
    """Let so many sessions write at once.

    Raises:
        RuntimeError: a turn did not bring a reply.
    """
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                LoadClient(url, temperature=0, max_output_tokens=reply_tokens)
            )
            for _ in range(sessions)
        ]
        asked = [client.ask(f"{LONG_TASK} Number {i}.") for i, client in enumerate(clients)]
        turns = await asyncio.gather(*asked)
    return _row(turns)


def _row(turns: list[ChatTurn]) -> DecodeRow:
    stats = [turn.end.stats for turn in turns if turn.end and turn.end.stats]
    rates = [one.tokens_per_s for one in stats if one.tokens_per_s is not None]
    if len(rates) < len(turns):
        raise RuntimeError(f"a turn brought no reply: {[turn.end for turn in turns]}")
    return DecodeRow(
        sessions=len(turns),
        output_tokens=sum(one.output_tokens for one in stats),
        tokens_per_s=sum(rates),
        tokens_per_s_each=sum(rates) / len(rates),
        wall_s=max(one.total_s for one in stats),
    )
