"""The service on the real engine loop, on a model whose replies tell of any wrong block."""

import asyncio

import pytest

from engine.ipc.queries import GetAudit, GetStats
from sessiond.domain import TurnBegun
from tests.fakes.fake_model import InjectedFaultError
from tests.harness.service import (
    ANN,
    BOB,
    SOCKET,
    World,
    finish,
    items,
    message,
    settled,
    until,
)
from tests.sessions.rig import Rig, StepGate, greedy, reply_after
from tests.sessions.trimmed import SHIFTED, keep


@pytest.fixture
def rig():
    return Rig()


@pytest.fixture
async def world(url, rig):
    await rig.engine.start()
    world = await World.start(url, rig.engine)
    yield world
    audit = await rig.engine.ask(GetAudit())
    assert audit.violations == []
    await world.service.housekeeping.detach(SOCKET)
    stats = await rig.engine.ask(GetStats())
    assert stats.active_blocks == 0
    assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
    await world.stop()
    await rig.engine.stop()


async def chat(world, turns, lane, *, caller=ANN, cached=True):
    """A conversation by response ids; each reply is checked against the model without a cache."""
    context, last = [], None
    for number in range(turns):
        text = f"turn {number} of {lane}"
        request = greedy(text, previous_response_id=last)
        turn, finished = await world.turn(request, lane=lane, caller=caller)
        if not context:
            context = message("system", "be good")
        prompt = [*context, *message("user", text), 259]
        assert finished.text == reply_after(prompt)
        assert finished.usage.input_tokens == len(prompt)
        if number and cached:
            assert finished.usage.cached_tokens >= len(context) - 16
        context = [*prompt, *finished.text.encode(), 256, 10]
        assert await world.context(turn.accepted.session_id, caller) == context
        last = turn.accepted.response_id
    return turn.accepted.session_id, context


async def test_many_conversations_at_once_reply_as_without_a_cache(world):
    await asyncio.gather(*(chat(world, 4, str(n), caller=ANN if n % 2 else BOB) for n in range(16)))


async def test_forks_continue_what_their_response_saw(world):
    first, _ = await world.turn(greedy("hi"))
    at_first = await world.context(first.accepted.session_id)
    trunk = await world.begin(greedy("trunk", conversation=first.accepted.session_id))
    forks = await settled(
        *(
            world.turn(
                greedy(f"fork {n}", previous_response_id=first.accepted.response_id), lane=str(n)
            )
            for n in range(4)
        )
    )
    await finish(trunk)
    for number, (turn, finished) in enumerate(forks):
        assert turn.accepted.session_id != first.accepted.session_id
        prompt = [*at_first, *message("user", f"fork {number}"), 259]
        assert finished.text == reply_after(prompt)
        assert finished.usage.cached_tokens >= len(at_first) - 16


async def test_a_fork_of_a_shifted_context_has_its_kv_and_can_be_made_again(start):
    """Also when it is shorter than the context was before the edit."""
    world = await start(Rig(), policy=SHIFTED)
    turn, _ = await world.turn(greedy("x" * 90))
    session, before = turn.accepted.session_id, await world.context(turn.accepted.session_id)
    turn, _ = await world.turn(greedy("y" * 40, conversation=session))
    keep(world, 1)
    turn, _ = await world.turn(greedy("z", conversation=session))
    tip, seen = turn.accepted.response_id, await world.context(session)
    assert len(seen) < len(before)
    _, trunk = await world.turn(greedy("same", conversation=session))
    fork, forked = await world.turn(greedy("same", previous_response_id=tip))
    assert fork.accepted.session_id != session
    for live in world.service.live:
        world.service.retention.unplace(live)
    _, again = await world.turn(greedy("same", previous_response_id=tip))
    assert forked.text == again.text == trunk.text
    assert forked.text != reply_after([*seen, *message("user", "same"), 259])
    assert forked.usage.reused_tokens == len(seen)
    assert forked.usage.fidelity == again.usage.fidelity == "shifted"


async def test_a_socket_that_returns_finds_its_conversation(world):
    session, context = await chat(world, 2, "a")
    await world.service.housekeeping.detach(SOCKET)
    world.service.housekeeping.attach(SOCKET)
    _, finished = await world.turn(greedy("again", conversation=session))
    assert finished.text == reply_after([*context, *message("user", "again"), 259])
    assert finished.usage.cached_tokens >= len(context) - 16  # released blocks still hit


async def test_instructions_that_change_recompute_everything(world):
    turn, finished = await world.turn(greedy("hi"))
    session = turn.accepted.session_id
    _, second = await world.turn(greedy("a", conversation=session, instructions="new rules"))
    prompt = [
        *message("system", "new rules"),
        *message("user", "hi"),
        *message("assistant", finished.text),
        *message("user", "a"),
        259,
    ]
    assert second.text == reply_after(prompt)
    assert second.usage.cached_tokens == 0
    assert second.usage.input_tokens == len(prompt)


class TestCutTurn:
    """Field case T03: 512 + 48 tokens, then 64 more, cut in prefill, then 64 more at once."""

    @pytest.fixture
    def rig(self):
        return Rig(max_num_batched_tokens=32, idle_prefill=False)  # steps are counted

    async def test_the_next_turn_sees_the_last_finished_one_and_itself(self, world, rig):
        rig.model.script(list(range(40, 86)))
        turn, finished = await world.turn(greedy("x" * 498, max_output_tokens=46))
        session = turn.accepted.session_id
        assert finished.usage.input_tokens == 512
        before = await world.context(session)
        assert len(before) == 560

        rig.model.gate = StepGate(1)
        steps = rig.model.steps
        cut = await world.begin(greedy("y" * 60, conversation=session))
        await until(lambda: rig.model.steps == steps + 2)  # the first chunk, and one that waits
        leaving = asyncio.create_task(world.service.housekeeping.detach(SOCKET))
        await asyncio.sleep(0)
        rig.model.gate.open()
        await leaving
        assert (await finish(cut)).reason == "cancelled"
        assert await world.context(session) == before

        world.service.housekeeping.attach(SOCKET)
        _, finished = await world.turn(greedy("z" * 60, conversation=session))
        assert finished.usage.input_tokens == 624
        assert finished.usage.cached_tokens >= 560 - 16
        assert finished.text == reply_after([*before, *message("user", "z" * 60), 259])


async def test_a_cancelled_turn_keeps_what_its_reader_saw(world, rig):
    turn, _ = await world.turn(greedy("hi"))
    session = turn.accepted.session_id
    before = await world.context(session)
    rig.model.script(list(b"a long reply that never ends" * 40))
    rig.model.gate = StepGate(8)
    cancelled = await world.begin(greedy("tell", conversation=session, max_output_tokens=500))
    seen = asyncio.Event()

    async def read():
        last = None
        async for entry in cancelled.entries():
            last = entry
            if not isinstance(entry, TurnBegun):
                seen.set()
        return last

    reading = asyncio.create_task(read())
    await seen.wait()
    cancelled.cancel(keep=True)
    rig.model.gate.open()
    finished = await reading
    assert (finished.status, finished.reason) == ("incomplete", "cancelled")
    after = [*before, *message("user", "tell"), *message("assistant", finished.text)]
    assert await world.context(session) == after
    _, finished = await world.turn(greedy("go on", conversation=session))
    assert finished.text == reply_after([*after, *message("user", "go on"), 259])


class TestSmallPool:
    @pytest.fixture
    def rig(self):
        return Rig(blocks=16, max_num_seqs=4)

    async def test_more_conversations_than_fit_take_turns_and_are_right(self, world):
        await asyncio.gather(*(chat(world, 2, str(n), cached=False) for n in range(6)))


def draw_no_more(model):
    """Fail in each step but those that idle engines take, which draw nothing."""
    execute = model.execute

    def failing(batch):
        if any(sequence.sample is not None for sequence in batch):
            raise InjectedFaultError
        return execute(batch)

    model.execute = failing


async def test_a_fault_of_the_engine_is_told_and_leaves_the_ids(url, rig):
    await rig.engine.start()
    world = await World.start(url, rig.engine, engine_ready_timeout_s=1.0)
    turn, _ = await world.turn(greedy("hi"))
    before = await world.context(turn.accepted.session_id)
    draw_no_more(rig.model)
    _, finished = await world.turn(greedy("a", conversation=turn.accepted.session_id))
    assert (finished.status, finished.error.code) == ("failed", "internal_error")
    assert await world.context(turn.accepted.session_id) == before
    await world.stop()
    await rig.engine.stop()

    again = Rig()
    await again.engine.start()
    world = await World.start(url, again.engine, iter(range(1000, 2000)))
    _, finished = await world.turn(greedy("a", conversation=turn.accepted.session_id))
    assert finished.text == reply_after([*before, *message("user", "a"), 259])
    await world.stop()
    await again.engine.stop()


async def test_items_that_were_added_are_new_to_the_next_turn_not_recomputed(world):
    said = items("one", ("assistant", "two"), "three")
    made = await world.service.openings.create(ANN, said, {})
    before = len(await world.context(made.id))
    _, first = await world.turn(greedy(conversation=made.id))
    assert (first.usage.reused_tokens, first.usage.recomputed_tokens) == (0, 0)
    assert first.usage.new_tokens == before + 1
    tip = len(await world.context(made.id))
    await world.service.conversations.add_items(ANN, made.id, items("four"))
    added = len(await world.context(made.id)) - tip
    _, second = await world.turn(greedy(conversation=made.id))
    owed = 2 + (first.status == "incomplete")  # the last token at a limit was not fed
    assert second.usage.new_tokens == added + 1 + owed
    assert second.usage.reused_tokens + second.usage.recomputed_tokens == tip - owed
