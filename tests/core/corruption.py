# ruff: noqa: SLF001 -- see below
"""Damage done to an engine's memory on purpose, so that its auditor has something to find.

No command brings these states about: they stand for faults of the engine itself. All writes of
tests to private state of the memory are in this module, and in no other.
"""

from engine.kv.context import Activity
from tests.harness.loop import Engine


def leak(engine: Engine) -> None:
    engine.loop.memory.pool.try_take(2)


def lose_a_reference(engine: Engine) -> None:
    memory = engine.loop.memory
    memory.pool.free(memory.contexts["a"].table.blocks[:1])


def list_a_block_twice(engine: Engine) -> None:
    pool = engine.loop.memory.pool
    pool._free.append(pool.free_blocks()[0])


def list_an_active_block(engine: Engine) -> None:
    memory = engine.loop.memory
    memory.pool._free.append(memory.contexts["a"].table.blocks[0])


def break_the_chain_of_cached_blocks(engine: Engine) -> None:
    engine.loop.memory.pool._oldest = -1


def forget_a_hashed_block(engine: Engine) -> None:
    memory = engine.loop.memory
    memory.cache.forget(memory.contexts["a"].table.blocks[0])


def hash_a_free_block(engine: Engine) -> None:
    pool = engine.loop.memory.pool
    pool._hashed[pool.free_blocks()[0]] = 1


def make_a_cached_block_writable(engine: Engine) -> None:
    pool = engine.loop.memory.pool
    pool._hashed[pool.cached_blocks()[0]] = 0


def change_ids_under_their_kv(engine: Engine) -> None:
    engine.loop.memory.contexts["a"].ids[3] += 1


def drop_ids_under_their_kv(engine: Engine) -> None:
    del engine.loop.memory.contexts["a"].ids[5:]


def leave_a_turns_ids(engine: Engine) -> None:
    engine.loop.memory.contexts["a"].ids.append(1)


def leave_reserved_blocks(engine: Engine) -> None:
    memory = engine.loop.memory
    memory.contexts["a"].table.reserve(memory.pool.try_take(1))


def reserve_a_hashed_block(engine: Engine) -> None:
    memory = engine.loop.memory
    context = memory.contexts["a"]
    context.activity = Activity.RUNNING
    cached = memory.pool.cached_blocks()[:1]
    memory.pool.share(cached)
    context.table.reserve(cached)


def leave_drafts_to_a_turn(engine: Engine) -> None:
    context = engine.loop.memory.contexts["a"]
    context.drafted, context.activity = 1, Activity.WAITING


def leave_drafts_behind_ids_without_kv(engine: Engine) -> None:
    context = engine.loop.memory.contexts["a"]
    context.drafted = 1
    context.append([1])
    context.commit()


def draft_beyond_the_tail(engine: Engine) -> None:
    context = engine.loop.memory.contexts["a"]
    context.draft_ids = [1] * 16
    context.drafted = 16


def use_a_block_twice(engine: Engine) -> None:
    memory = engine.loop.memory
    blocks = memory.contexts["a"].table.blocks[:1]
    memory.pool.share(blocks)
    memory.contexts["a"].table._reserved.extend(blocks)


def swap_two_entries(engine: Engine) -> None:
    entries = engine.loop.memory.contexts["a"].table._entries
    entries[0], entries[1] = entries[1], entries[0]


def break_a_range(engine: Engine) -> None:
    entries = engine.loop.memory.contexts["a"].table._entries
    entries[-1] = entries[-1]._replace(last=16)


def miscount_kept_tokens(engine: Engine) -> None:
    engine.loop.memory.contexts["a"].table.kept_len -= 1


def move_the_next_position(engine: Engine) -> None:
    engine.loop.memory.contexts["a"].table.next_pos += 1


def find_a_block_under_a_foreign_key(engine: Engine) -> None:
    cache = engine.loop.memory.cache
    _, block = next(cache.items())
    cache._block_of[b"x" * 32] = block
