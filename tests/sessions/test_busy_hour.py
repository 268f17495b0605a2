"""M02: conversations that outgrow their threshold while other users' streams never end."""

import asyncio
from itertools import count

import pytest

from sessiond.domain import Caller, ContextChanged, PolicyChoice
from tests.harness.service import World, entries, finish
from tests.sessions.rig import Rig, greedy

THRESHOLD = 400
SUMMARY = 64
TURNS = 40
CHATS = 5
STREAMS = 3
POLICY = PolicyChoice(
    type="compaction",
    parameters={"compact_threshold": THRESHOLD, "keep_turns": 2, "summary_tokens": SUMMARY},
)
NO_POLICY = PolicyChoice(type="none")


def user(name):
    return Caller(user_id=name, is_admin=False, salt=name.encode())


async def stream_on(world, name, done):
    """Turns of a user, one after another, each in a session of its own."""
    for number in count():
        if done.is_set():
            return
        request = greedy(f"stream {number}", max_output_tokens=200, policy=NO_POLICY)
        turn = await world.begin(request, caller=user(name), lane=f"{name}-{number}")
        await finish(turn)
        await world.service.conversations.close(user(name), turn.accepted.session_id)


async def chat_of(world, name):
    """Every context of a long chat, and the tokens that each of its turns added."""
    session, reasons, sizes = None, [], []
    for number in range(TURNS):
        turn = await world.begin(
            greedy(f"turn {number} of {name}", conversation=session),
            caller=user(name),
            lane=name,
        )
        told = await entries(turn)
        assert told[-1].status in {"completed", "incomplete"}
        session = turn.accepted.session_id
        reasons += [one.reason for one in told if isinstance(one, ContextChanged)]
        start, after = turn.plan.layout.tokens, world.service.live.get(session).tokens
        sizes.append((start, after - start))
    return reasons, sizes


@pytest.mark.parametrize("slots", [2, 8])
async def test_no_context_goes_beyond_one_and_a_half_thresholds_and_a_turn(url, slots):
    rig = Rig(max_num_seqs=slots)
    await rig.engine.start()
    world = await World.start(url, rig.engine, policy=POLICY)
    done = asyncio.Event()
    streams = [
        asyncio.create_task(stream_on(world, f"stream{number}", done)) for number in range(STREAMS)
    ]
    try:
        chats = await asyncio.gather(*(chat_of(world, f"chat{number}") for number in range(CHATS)))
    finally:
        done.set()
        await asyncio.gather(*streams)
        await world.stop()
        await rig.engine.stop()
    for reasons, sizes in chats:
        assert set(reasons) == {"summarized"}
        assert all(start <= 1.5 * THRESHOLD + most(sizes) for start, _ in sizes)


def most(sizes):
    return max(tokens for _, tokens in sizes)
