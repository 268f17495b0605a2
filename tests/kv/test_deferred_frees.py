"""Litter: kept until it is emptied, and never without end."""

import weakref

from engine.kv.page_table import DeferredFreeList, PageTable, PageTableStats


class Old(list[int]):
    """A list that can be watched."""


def test_what_is_thrown_away_lives_until_it_is_emptied() -> None:
    deferred_frees, old = DeferredFreeList(), Old()
    watch = weakref.ref(old)
    deferred_frees.add(old)
    del old
    assert watch() is not None
    deferred_frees.empty()
    assert watch() is None


def test_who_never_empties_it_keeps_little() -> None:
    deferred_frees = DeferredFreeList()
    for _ in range(1000):
        deferred_frees.add(Old())
    assert 0 < len(deferred_frees.objects) <= 64


def test_a_table_that_gives_all_back_frees_nothing_by_itself() -> None:
    table_stats = PageTableStats()
    table = PageTable(16, table_stats)
    table.reserve(range(500))
    table.append(500 * 16)
    assert len(table_stats.deferred_frees.objects) == 0
    assert list(table.truncate(0)) == list(range(500))
    assert len(table_stats.deferred_frees.objects) == 1
    assert (table_stats.tokens, table_stats.blocks, table_stats.holding) == (0, 0, 0)
