"""PageTable: against a list of (block, slot) per token."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.kv.page_table import PageEntry, PageTable, WrongSpace

SIZE = 4


class TableAgainstModel(RuleBasedStateMachine):
    """The model: one (block, slot, position) per token, and the reserved blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(SIZE)
        self.tokens: list[tuple[int, int, int]] = []
        self.reserved: list[int] = []
        self.sealed = 0
        self.next_block = 0

    def length(self, data: st.DataObject) -> int:
        """A length that a table is cut to: what was there before an edit goes as a whole."""
        return data.draw(st.just(0) | st.integers(self.sealed, len(self.tokens)))

    @property
    def at_border(self) -> bool:
        return (len(self.tokens) - self.sealed) % SIZE == 0

    def new_blocks(self, count: int) -> list[int]:
        self.next_block += count
        return list(range(self.next_block - count, self.next_block))

    @rule(count=st.integers(0, 3))
    def reserve(self, count: int) -> None:
        blocks = self.new_blocks(count)
        self.table.reserve(blocks)
        self.reserved += blocks

    @rule(count=st.integers(0, 14))
    def append(self, count: int) -> None:
        needed = self.table.blocks_needed(count)
        if needed:
            with pytest.raises(WrongSpace):
                self.table.append(count)
            blocks = self.new_blocks(needed)
            self.table.reserve(blocks)
            self.reserved += blocks
        self.table.append(count)
        for _ in range(count):
            if self.at_border:
                block, slot = self.reserved.pop(0), 0
            else:
                block, slot = self.tokens[-1][0], self.tokens[-1][1] + 1
            self.tokens.append((block, slot, len(self.tokens)))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = self.length(data)
        before = self.table.blocks
        dropped = self.table.truncate(length)
        del self.tokens[length:]
        self.sealed = min(self.sealed, length)
        assert [*self.table.blocks, *dropped] == before
        self.reserved = []

    @rule(data=st.data())
    def fork_and_go_on_with_the_child(self, data: st.DataObject) -> None:
        length = self.length(data)
        entries = self.table.entries
        child = self.table.fork(length)
        assert self.table.entries == entries, "the parent is as before"
        del self.tokens[length:]
        self.table, self.reserved = child, []
        self.sealed = min(self.sealed, length)

    @rule(data=st.data())
    def edit(self, data: st.DataObject) -> None:
        kept = data.draw(
            st.lists(st.booleans(), min_size=len(self.tokens), max_size=len(self.tokens))
        )
        before = Counter(self.table.blocks)
        pieces: list[tuple[int, tuple[int, int, int]]] = []
        end = at = 0
        for number, entry in enumerate(self.table.entries):
            run = 0
            for slot in range(entry.first, entry.last + 2):
                inside = slot <= entry.last and kept[at]
                if run and not inside:
                    pieces.append((number, (end, end + run, slot - run)))
                    end, run = end + run, 0
                run += inside
                at += slot <= entry.last
        again, gone = self.table.rearrange(pieces)
        assert Counter(self.table.blocks) == before + Counter(again) - Counter(gone)
        left = [token for token, stays in zip(self.tokens, kept, strict=True) if stays]
        self.tokens = [(block, slot, at) for at, (block, slot, _) in enumerate(left)]
        self.sealed, self.reserved = len(self.tokens), []

    @precondition(lambda self: self.at_border and not self.reserved)
    @rule(count=st.integers(0, 3))
    def attach(self, count: int) -> None:
        blocks = self.new_blocks(count)
        pages = [(0, SIZE - first, first) for first in range(count)]
        self.table.attach(blocks, pages)
        for block, (_, _, first) in zip(blocks, pages, strict=True):
            for slot in range(first, SIZE):
                self.tokens.append((block, slot, len(self.tokens)))
        if count > 1:  # more than parts of blocks that are there already
            self.table.seal(len(self.table.entries))
            self.sealed = len(self.tokens)

    @precondition(lambda self: self.table.open_tail is not None)
    @rule()
    def copy_the_tail(self) -> None:
        (block,) = self.new_blocks(1)
        old = self.table.replace_open_tail(block)
        assert old == self.tokens[-1][0]
        self.tokens = [(block if b == old else b, slot, pos) for b, slot, pos in self.tokens]

    @invariant()
    def agrees_with_the_model(self) -> None:
        table = self.table
        read = [
            (entry.block, slot, entry.base + slot)
            for entry in table.entries
            for slot in range(entry.first, entry.last + 1)
        ]
        assert read == self.tokens
        assert table.kept_len == table.next_pos == len(self.tokens)
        assert table.reserved_count == len(self.reserved)
        assert table.blocks == [entry.block for entry in table.entries] + self.reserved
        assert table.block_count == len(table.blocks)
        assert table.room == (self.sealed - len(self.tokens)) % SIZE + SIZE * len(self.reserved)
        assert table.open_tail == (None if self.at_border else self.tokens[-1][0])


TestTableAgainstModel = TableAgainstModel.TestCase
TestTableAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)


def table_of(tokens: int) -> PageTable:
    table = PageTable(SIZE)
    table.reserve(range(table.blocks_needed(tokens)))
    table.append(tokens)
    return table


def test_a_block_holds_the_tokens_of_its_place_in_the_sequence() -> None:
    table = table_of(9)
    assert table.entries == (
        PageEntry(0, 0, 3, 0),
        PageEntry(1, 0, 3, 4),
        PageEntry(2, 0, 0, 8),
    )


def test_rewinding_drops_whole_blocks_and_keeps_part_of_one() -> None:
    table = table_of(11)
    assert list(table.truncate(6)) == [2]
    assert table.entries[-1] == PageEntry(1, 0, 1, 4)
    assert table.open_tail == 1
    assert table.block(0) == 0


def test_keeping_more_than_there_is_changes_nothing() -> None:
    table = table_of(5)
    with pytest.raises(WrongSpace) as raised:
        table.truncate(6)
    assert (raised.value.asked, raised.value.there) == (6, 5)
    assert table.kept_len == 5


def test_full_blocks_are_attached_at_a_border_only() -> None:
    with pytest.raises(WrongSpace):
        table_of(5).attach([9], [(5, 9, 0)])
    table = table_of(4)
    table.attach([9], [(4, 8, 0)])
    assert table.next_pos == 8


def test_pages_that_moved_up_are_given_back_from_where_they_lie_now() -> None:
    table = table_of(19)  # blocks 0 to 4
    table.reserve([7])
    assert table.compact(1, [9, 2, 3], 14) == [1, 4, 7]
    assert table.entries[1:] == (
        PageEntry(9, 0, 3, 4),
        PageEntry(2, 0, 3, 8),
        PageEntry(3, 0, 1, 12),
    )
    assert (table.kept_len, table.next_pos) == (14, 14)
    assert table.blocks == [0, 9, 2, 3]
    assert list(table.truncate(0)) == [0, 9, 2, 3]
