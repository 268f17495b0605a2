"""The auditor: each kind of damage is found and named."""

from collections.abc import Callable

import pytest

from engine.kv.context import Activity
from tests.core.harness import KV_BYTES_PER_BLOCK, Engine


@pytest.fixture
def used() -> Engine:
    """Two sessions on shared blocks, cached and free ones left."""
    engine = Engine(num_blocks=16)
    engine.open("a")
    engine.turn("a", range(40))
    engine.fork("b", "a", 35)
    engine.turn("b", [9] * 30)
    engine.truncate("b", 20)
    assert engine.audit().ok
    return engine


def test_a_sound_engine_has_nothing_to_report(used: Engine) -> None:
    report = used.audit()
    assert report.violations == []
    assert report.leaked_blocks == 0
    assert report.total_blocks == 16
    assert report.free_blocks + report.cached_blocks + report.active_blocks == 16
    assert min(report.free_blocks, report.cached_blocks, report.active_blocks) > 0
    assert report.device_bytes == 16 * KV_BYTES_PER_BLOCK
    assert report.rss_bytes > 1_000_000


def leak(engine: Engine) -> None:
    engine.loop._memory.pool.try_take(2)


def lose_a_reference(engine: Engine) -> None:
    memory = engine.loop._memory
    memory.pool.free(memory.contexts["a"].table.blocks[:1])


def list_a_block_twice(engine: Engine) -> None:
    pool = engine.loop._memory.pool
    pool._free.append(pool.free_blocks()[0])


def list_an_active_block(engine: Engine) -> None:
    memory = engine.loop._memory
    memory.pool._free.append(memory.contexts["a"].table.blocks[0])


def break_the_chain_of_cached_blocks(engine: Engine) -> None:
    engine.loop._memory.pool._oldest = -1


def forget_a_hashed_block(engine: Engine) -> None:
    memory = engine.loop._memory
    memory.cache.forget(memory.contexts["a"].table.blocks[0])


def hash_a_free_block(engine: Engine) -> None:
    pool = engine.loop._memory.pool
    pool._hashed[pool.free_blocks()[0]] = 1


def make_a_cached_block_writable(engine: Engine) -> None:
    pool = engine.loop._memory.pool
    pool._hashed[pool.cached_blocks()[0]] = 0


def change_ids_under_their_kv(engine: Engine) -> None:
    engine.loop._memory.contexts["a"].ids[3] += 1


def drop_ids_under_their_kv(engine: Engine) -> None:
    del engine.loop._memory.contexts["a"].ids[5:]


def leave_a_turns_ids(engine: Engine) -> None:
    engine.loop._memory.contexts["a"].ids.append(1)


def leave_reserved_blocks(engine: Engine) -> None:
    memory = engine.loop._memory
    memory.contexts["a"].table.reserve(memory.pool.try_take(1))


def reserve_a_hashed_block(engine: Engine) -> None:
    memory = engine.loop._memory
    context = memory.contexts["a"]
    context.activity = Activity.RUNNING
    cached = memory.pool.cached_blocks()[:1]
    memory.pool.share(cached)
    context.table.reserve(cached)


def leave_drafts_to_a_turn(engine: Engine) -> None:
    context = engine.loop._memory.contexts["a"]
    context.drafted, context.activity = 1, Activity.WAITING


def leave_drafts_behind_ids_without_kv(engine: Engine) -> None:
    context = engine.loop._memory.contexts["a"]
    context.drafted = 1
    context.append([1])
    context.commit()


def draft_beyond_the_tail(engine: Engine) -> None:
    context = engine.loop._memory.contexts["a"]
    context.draft_ids = [1] * 16
    context.drafted = 16


def use_a_block_twice(engine: Engine) -> None:
    memory = engine.loop._memory
    blocks = memory.contexts["a"].table.blocks[:1]
    memory.pool.share(blocks)
    memory.contexts["a"].table._reserved.extend(blocks)


def swap_two_entries(engine: Engine) -> None:
    entries = engine.loop._memory.contexts["a"].table._entries
    entries[0], entries[1] = entries[1], entries[0]


def break_a_range(engine: Engine) -> None:
    entries = engine.loop._memory.contexts["a"].table._entries
    entries[-1] = entries[-1]._replace(last=16)


def miscount_kept_tokens(engine: Engine) -> None:
    engine.loop._memory.contexts["a"].table.kept_len -= 1


def move_the_next_position(engine: Engine) -> None:
    engine.loop._memory.contexts["a"].table.next_pos += 1


def find_a_block_under_a_foreign_key(engine: Engine) -> None:
    cache = engine.loop._memory.cache
    _, block = next(cache.items())
    cache._block_of[b"x" * 32] = block


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (leak, "references counted, 0 in tables"),
        (lose_a_reference, "1 references counted, 2 in tables"),
        (list_a_block_twice, "in 2 lists"),
        (list_an_active_block, "in 1 lists"),
        (break_the_chain_of_cached_blocks, "cached blocks counted, 0 listed"),
        (forget_a_hashed_block, "marked as hashed"),
        (hash_a_free_block, "free, but hashed"),
        (make_a_cached_block_writable, "writable in the pool"),
        (change_ids_under_their_kv, "hashed under other ids"),
        (drop_ids_under_their_kv, "5 ids"),
        (leave_a_turns_ids, "idle with 1 ids not committed"),
        (leave_reserved_blocks, "idle with 1 blocks reserved"),
        (reserve_a_hashed_block, "is hashed or shared"),
        (leave_drafts_to_a_turn, "1 drafts behind"),
        (leave_drafts_behind_ids_without_kv, "1 drafts behind"),
        (draft_beyond_the_tail, "16 drafts, room"),
        (use_a_block_twice, "a block twice"),
        (swap_two_entries, "positions overlap"),
        (break_a_range, "no valid range"),
        (miscount_kept_tokens, "not the number of valid slots"),
        (move_the_next_position, "does not follow"),
        (find_a_block_under_a_foreign_key, "not its own"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_damage_is_reported(used: Engine, damage: Callable[[Engine], None], words: str) -> None:
    damage(used)
    report = used.audit()
    assert not report.ok
    assert any(words in violation for violation in report.violations), report.violations


def test_leaked_blocks_are_counted(used: Engine) -> None:
    leak(used)
    assert used.audit().leaked_blocks == 2


def test_an_audit_repairs_nothing(used: Engine) -> None:
    leak(used)
    assert used.audit().violations == used.audit().violations
