"""Litter: kept until it is emptied, and never without end."""

import weakref

from engine.memory.litter import Litter
from engine.memory.page_table import PageTable, Tally


class Old(list[int]):
    """A list that can be watched."""


def test_what_is_thrown_away_lives_until_it_is_emptied() -> None:
    litter, old = Litter(), Old()
    watch = weakref.ref(old)
    litter.add(old)
    del old
    assert watch() is not None
    litter.empty()
    assert watch() is None


def test_who_never_empties_it_keeps_little() -> None:
    litter = Litter()
    for _ in range(1000):
        litter.add(Old())
    assert 0 < len(litter) <= 64


def test_a_table_that_gives_all_back_frees_nothing_by_itself() -> None:
    tally = Tally()
    table = PageTable(16, tally)
    table.reserve(range(500))
    table.append(500 * 16)
    assert len(tally.litter) == 0
    assert list(table.truncate(0)) == list(range(500))
    assert len(tally.litter) == 1
    assert (tally.tokens, tally.blocks, tally.holding) == (0, 0, 0)
