"""What sessions hold together is counted as it changes: nobody looks at each of them."""

import pytest

from engine.kv.page_table import PageTable, PageTableStats
from tests.harness.loop import Engine


class Unseen(dict):
    """Sessions that can be found, and must not be gone through."""

    def __iter__(self):
        raise AssertionError("somebody goes through all sessions")

    items = values = keys = __iter__


def hide(engine: Engine) -> None:
    memory = engine.loop.memory
    memory.contexts = Unseen(memory.contexts)


def test_the_numbers_are_told_without_a_look_at_any_session(make_engine) -> None:
    engine = make_engine()
    for number in range(5):
        engine.open(f"s{number}")
        engine.turn(f"s{number}", [number + 1] * 20)
    sessions = dict(engine.loop.memory.contexts)
    hide(engine)
    stats = engine.stats()
    engine.loop.memory.contexts = sessions
    assert (stats.contexts, stats.idle) == (5, 5)
    assert stats.kept_tokens == sum(context.table.kept_len for context in sessions.values()) > 0
    assert stats.leaked_references == 0


def test_running_turns_are_told_apart_and_a_shared_block_counts_once(make_engine) -> None:
    engine = make_engine(max_num_seqs=2)
    for session in "ab":
        engine.open(session)
        engine.submit(session, [7] * 40, max_output_tokens=8, stop_ids=[])
    for _step in range(3):
        engine.loop.step()
    contexts = engine.loop.memory.contexts
    tables = [contexts[session].table for session in "ab"]
    stats = engine.stats()
    assert stats.running == 2
    assert stats.running_blocks == len({block for table in tables for block in table.blocks})
    assert stats.running_blocks < sum(table.block_count for table in tables), "nothing is shared"
    assert stats.running_tokens == sum(table.kept_len for table in tables)
    assert stats.running_blocks == stats.active_blocks
    engine.run()


def test_a_block_that_nobody_holds_is_counted_at_once(make_engine) -> None:
    engine = make_engine()
    engine.open("a")
    engine.turn("a", [1] * 20)
    pool = engine.loop.memory.pool
    lost = pool.try_take(2)
    assert engine.stats().leaked_references == 2
    pool.free(lost)
    assert engine.stats().leaked_references == 0


def test_a_step_of_several_tokens_shares_its_time_among_them(make_engine) -> None:
    engine = make_engine()
    engine.open("a")
    turn = engine.submit("a", [1] * 5, max_output_tokens=6, stop_ids=[])
    engine.run()
    assert engine.ending(turn).counts.output_tokens == 6
    assert engine.stats().token_times.count == 5, "the first token has a time of its own"


@pytest.mark.parametrize("count", [0, 1, 16, 17, 40])
def test_tables_are_counted_whatever_is_done_to_them(count) -> None:
    table_stats = PageTableStats()
    table = PageTable(16, table_stats)
    table.reserve(list(range(table.blocks_needed(count))))
    table.append(count)
    child = table.fork(count // 2)
    held = [table, child]
    assert table_stats.tokens == sum(one.kept_len for one in held)
    assert table_stats.blocks == sum(one.block_count for one in held)
    assert table_stats.holding == sum(one.block_count > 0 for one in held)
    for one in held:
        one.truncate(0)
    assert (table_stats.tokens, table_stats.blocks, table_stats.holding) == (0, 0, 0)
