"""Plays a workload, or the raw rates, on one server, through whatever client it needs."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass

from benchmarks.chat import Chat
from benchmarks.turn_times import TurnTimes, decode_rate
from benchmarks.workloads import Workload, message

OpenChat = Callable[[], AbstractAsyncContextManager[Chat]]
"""Opens a new conversation with the server under test."""

PREFILLS = (512, 4096)
BATCHES = (1, 8, 32)
_DECODE_CONTEXT_TOKENS = 256
_DECODE_REPLY_TOKENS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The turns of each session, and the seconds from the first sending to the last reply."""

    sessions: Sequence[Sequence[TurnTimes]]
    wall_s: float


async def play(workload: Workload, seed: str, open_chat: OpenChat) -> Played:
    """Let all sessions talk at once. With a pause for thought they start spread over one.

    Raises:
        ChatError: a turn brought no reply.
    """
    async with AsyncExitStack() as stack:
        chats = [await stack.enter_async_context(open_chat()) for _ in range(workload.sessions)]
        start_s = time.perf_counter()
        sessions = await asyncio.gather(
            *(_talk(workload, seed, number, chat) for number, chat in enumerate(chats))
        )
        return Played(sessions=sessions, wall_s=time.perf_counter() - start_s)


async def _talk(workload: Workload, seed: str, number: int, chat: Chat) -> list[TurnTimes]:
    await asyncio.sleep(workload.think_s * number / workload.sessions)
    turns: list[TurnTimes] = []
    for turn in range(workload.turns):
        if turn:
            await asyncio.sleep(workload.think_s)
        text = message(seed, number, turn, workload.message_tokens)
        turns.append(await chat.ask(text, workload.reply_tokens))
    return turns


async def raw_rates(
    seed: str,
    open_chat: OpenChat,
    *,
    prefills: Sequence[int] = PREFILLS,
    batches: Sequence[int] = BATCHES,
) -> dict[str, float]:
    """Tokens per second through the server's door: `prefill_512` fresh tokens, `decode_8` together.

    Raises:
        ChatError: a turn brought no reply.
    """
    rates: dict[str, float] = {}
    for tokens in prefills:
        async with open_chat() as chat:
            turn = await chat.ask(message(f"{seed}/prefill", tokens, 0, tokens), 1)
        rates[f"prefill_{tokens}"] = (turn.input_tokens - turn.cached_tokens) / turn.ttft_s
    for batch in batches:
        together = Workload(
            name=f"decode {batch}",
            sessions=batch,
            turns=1,
            message_tokens=_DECODE_CONTEXT_TOKENS,
            reply_tokens=_DECODE_REPLY_TOKENS,
        )
        played = await play(together, f"{seed}/decode/{batch}", open_chat)
        rate = decode_rate([turns[0] for turns in played.sessions])
        if rate is not None:
            rates[f"decode_{batch}"] = rate
    return rates
