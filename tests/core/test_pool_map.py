"""The map of the pool says of each block what the pool and the page tables say of it."""

import time
from array import array
from types import SimpleNamespace

from engine.core.inspection import pool_map
from engine.ids import SessionId
from engine.ipc.queries import BLOCK_STATES, GetPool
from engine.kv.block_pool import BlockPool
from engine.kv.page_table import PageTable
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine
from tests.tiers.support import LateMover, tiers_of


def mapped(engine: Engine) -> tuple[str, list[str | None]]:
    """States by block, and owners by block."""
    found = engine.loop.answer(GetPool())
    owners = array("i", found.owners)
    names = [found.sessions[owner] if owner >= 0 else None for owner in owners]
    return found.states.decode(), names


def test_each_block_has_its_state_and_an_owner() -> None:
    engine = Engine(num_blocks=16)
    engine.open("a")
    engine.turn("a", range(40))
    engine.fork("b", "a", 35)
    engine.turn("b", [9] * 30)
    engine.open("gone")
    engine.turn("gone", [7] * 33)
    engine.release("gone")
    states, owners = mapped(engine)
    pool, contexts = engine.loop.memory.pool, engine.loop.memory.contexts
    assert set(states) == set(BLOCK_STATES.values()) - {"m"}
    for block, (state, owner) in enumerate(zip(states, owners, strict=True)):
        holders = {name for name, one in contexts.items() if block in one.table.blocks}
        assert (owner in holders) if holders else (owner is None)
        if pool.references(block):
            assert state == ("s" if pool.references(block) > 1 else "a")
        else:
            assert state == ("c" if pool.is_hashed(block) else "f")
    stats = engine.stats()
    assert states.count("f") == stats.free_blocks
    assert states.count("c") == stats.cached_blocks
    assert states.count("a") + states.count("s") == stats.active_blocks


def test_a_pool_that_nobody_uses_is_free_and_nobodys() -> None:
    assert mapped(Engine(num_blocks=5)) == ("fffff", [None] * 5)


def test_a_block_that_is_being_written_to_a_tier_is_moving() -> None:
    mover = LateMover()
    engine = Engine(num_blocks=16, tiers=tiers_of(mover, KV_BYTES_PER_BLOCK, host=8))
    engine.open("a")
    turn = engine.submit("a", range(40))
    engine.step_until(lambda: engine.ending(turn) is not None)
    engine.park("a")
    states, owners = mapped(engine)
    held = engine.loop.memory.kv_transfer.held
    assert held
    assert {block for block, state in enumerate(states) if state == "m"} == set(held)
    assert set(owners) == {None}
    mover.carry_out(len(mover.transfers[False]))
    engine.run()
    assert "m" not in mapped(engine)[0]


def test_a_hundred_thousand_blocks_are_looked_at_within_a_step() -> None:
    """Generous, as machines are busy: it takes about 10 ms of one core."""
    total, contexts = 100_000, {}
    pool = BlockPool(total, forget=lambda _: None)
    for number in range(5000):
        table = PageTable(16)
        table.reserve(pool.try_take(20))
        contexts[SessionId(f"s{number}")] = SimpleNamespace(session=f"s{number}", table=table)
    begun = time.process_time()
    found = pool_map(contexts, pool, set())
    assert time.process_time() - begun < 5
    assert found.states == b"a" * total
    assert len(found.owners) == 4 * total
