"""KV of a turn that waits for a seat comes back meanwhile, and costs nobody else's."""

import pytest

from engine.core.idle_prefill import AHEAD
from engine.ids import BlockId
from engine.ipc.messages import CloseContext
from tests.tiers.engine_words import PROMPT, again, fill, reply, used
from tests.tiers.support import PromptMover


@pytest.fixture
def one_slot(make, tier):
    """An engine on which one turn runs at a time, and a session whose KV lies in a tier."""
    engine = make(tier, max_num_seqs=1, num_blocks=64)
    ids = used(engine)
    engine.park("a")
    fill(engine)
    return engine, ids


def occupied(engine, session: str = "b"):
    """A turn that has the seat, for long."""
    engine.open(session)
    turn = engine.submit(session, [1, 2, 3], max_output_tokens=200)
    engine.step_until(lambda: engine.started(turn) is not None)
    return turn


def test_it_is_there_before_there_is_a_running_slot(one_slot) -> None:
    engine, ids = one_slot
    running = occupied(engine)
    waiting = engine.submit("a", [7])
    engine.step_until(lambda: engine.view("a").blocks == 6)
    assert engine.started(waiting) is None
    assert engine.ending(running) is None
    assert engine.stats().restored_tokens_total == 0, "it is counted when the turn runs"
    assert not engine.audit().violations
    engine.run()
    expected = reply(engine, [*ids, 7])
    assert engine.kept(waiting)[: len(expected)] == expected
    assert engine.ending(waiting).counts.restored_tokens == 96
    assert (
        engine.ending(waiting).counts.recomputed_tokens + engine.ending(waiting).counts.new_tokens
        < 20
    )


def test_what_no_tier_has_is_not_given_up_for_it(make, tier) -> None:
    engine = make(tier, max_num_seqs=1, num_blocks=24)
    used(engine)
    engine.park("a")
    fill(engine)
    pool, kv_transfer = engine.loop.memory.pool, engine.loop.memory.kv_transfer
    occupied(engine)
    tiers = kv_transfer.tiers
    has = tiers.has
    tiers.has = lambda _key: False
    waiting = engine.submit("a", [7])
    cached = pool.cached_blocks()
    engine.step(5)
    assert engine.view("a").blocks == 0
    assert set(pool.cached_blocks()) | {BlockId(block) for block in cached[:1]} >= set(cached)
    tiers.has = has
    engine.step_until(lambda: engine.view("a").blocks == 6)
    assert engine.started(waiting) is None
    engine.run()


def test_some_blocks_stay_for_those_that_run(make, tier) -> None:
    engine = make(tier, max_num_seqs=1, num_blocks=64)
    used(engine)
    engine.park("a")
    fill(engine)
    occupied(engine)
    pool = engine.loop.memory.pool
    held = pool.try_take(pool.available_count - 9)  # a step takes one more at most
    engine.submit("a", [7])
    engine.step(3)
    assert engine.view("a").blocks == 0, "six of nine would leave less than four"
    pool.free(held[:3])
    engine.step_until(lambda: engine.view("a").blocks == 6)
    pool.free(held[3:])
    engine.run()


def test_idle_sessions_keep_theirs(make, tier) -> None:
    engine = make(tier, max_num_seqs=1, num_blocks=24)
    used(engine)
    engine.park("a")
    fill(engine)
    engine.open("c")
    engine.turn("c", [9] * 250)
    blocks = engine.view("c").blocks
    occupied(engine)
    engine.submit("a", [7])
    engine.step(30)
    assert engine.view("a").blocks == 0
    assert engine.view("c").blocks == blocks
    engine.run()


def test_a_turn_that_leaves_the_queue_leaves_its_session_below(one_slot) -> None:
    engine, ids = one_slot
    occupied(engine)
    before = engine.stats().active_blocks
    waiting = engine.submit("a", [7])
    engine.step_until(lambda: engine.view("a").blocks == 6)
    engine.cancel(waiting, keep=False)
    engine.step()
    assert engine.view("a").blocks == 0
    assert engine.stats().active_blocks <= before + 1
    engine.run()
    assert not engine.audit().violations
    assert again(engine, ids).reused_tokens >= 96, "what nobody took meanwhile is found"


def test_one_that_leaves_while_it_is_on_its_way_takes_no_blocks_along(make, tier) -> None:
    mover = PromptMover()
    engine = make(tier, mover, max_num_seqs=1, num_blocks=64)
    used(engine)
    engine.park("a")
    fill(engine)
    engine.run()
    occupied(engine)
    mover.hold = True
    waiting = engine.submit("a", [7])
    engine.step(2)
    assert engine.loop.memory.kv_transfer.held
    engine.cancel(waiting, keep=False)
    engine.loop.handle(CloseContext(session="a"))
    engine.step(2)
    mover.hold = False
    engine.run()
    assert not engine.loop.memory.kv_transfer.held
    assert not engine.audit().violations


def test_only_the_first_that_wait_are_looked_at(make, tier) -> None:
    engine = make(tier, max_num_seqs=1, num_blocks=200)
    names = [f"s{number}" for number in range(AHEAD + 2)]
    for number, name in enumerate(names):
        engine.open(name)
        engine.turn(name, [number + 20, *PROMPT])
        engine.park(name)
    fill(engine)
    occupied(engine)
    for name in names:
        engine.submit(name, [7])
    engine.step(30)
    there = [name for name in names if engine.view(name).blocks]
    assert there == names[:AHEAD]
    engine.run()


def test_a_session_that_the_device_had_in_part_keeps_that(make, tier) -> None:
    engine = make(tier, max_num_seqs=1, num_blocks=64)
    ids = used(engine)
    occupied(engine)
    waiting = engine.submit("a", [7])
    engine.step(5)
    blocks = engine.view("a").blocks
    assert blocks
    engine.cancel(waiting, keep=False)
    engine.step(2)
    assert engine.view("a").blocks == blocks
    engine.run()
    assert again(engine, ids).reused_tokens >= 96
