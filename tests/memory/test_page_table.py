"""PageTable: against a list of (block, slot) per token."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.memory.page_table import PageEntry, PageTable, WrongSpace

SIZE = 4


class TableAgainstModel(RuleBasedStateMachine):
    """The model: one (block, slot, position) per token, and the reserved blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.table = PageTable(SIZE)
        self.tokens: list[tuple[int, int, int]] = []
        self.reserved: list[int] = []
        self.next_block = 0

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
            if len(self.tokens) % SIZE == 0:
                block, slot = self.reserved.pop(0), 0
            else:
                block, slot = self.tokens[-1][0], self.tokens[-1][1] + 1
            self.tokens.append((block, slot, len(self.tokens)))

    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.tokens)))
        before = self.table.blocks
        dropped = self.table.truncate(length)
        del self.tokens[length:]
        assert [*self.table.blocks, *dropped] == before
        self.reserved = []

    @rule(data=st.data())
    def fork_and_go_on_with_the_child(self, data: st.DataObject) -> None:
        length = data.draw(st.integers(0, len(self.tokens)))
        entries = self.table.entries
        child = self.table.fork(length)
        assert self.table.entries == entries, "the parent is as before"
        del self.tokens[length:]
        self.table, self.reserved = child, []

    @precondition(lambda self: len(self.tokens) % SIZE == 0 and not self.reserved)
    @rule(count=st.integers(0, 3))
    def attach(self, count: int) -> None:
        blocks = self.new_blocks(count)
        self.table.attach(blocks)
        for block in blocks:
            for slot in range(SIZE):
                self.tokens.append((block, slot, len(self.tokens)))

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
        assert table.room == -len(self.tokens) % SIZE + SIZE * len(self.reserved)
        border = len(self.tokens) % SIZE == 0
        assert table.open_tail == (None if border else self.tokens[-1][0])


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
    assert table.truncate(6) == [2]
    assert table.entries[-1] == PageEntry(1, 0, 1, 4)
    assert table.open_tail == 1
    assert table.full_block(0) == 0
    assert table.full_block(1) is None


def test_keeping_more_than_there_is_changes_nothing() -> None:
    table = table_of(5)
    with pytest.raises(WrongSpace) as raised:
        table.truncate(6)
    assert (raised.value.asked, raised.value.there) == (6, 5)
    assert table.kept_len == 5


def test_full_blocks_are_attached_at_a_border_only() -> None:
    with pytest.raises(WrongSpace):
        table_of(5).attach([9])
    table = table_of(4)
    table.attach([9])
    assert table.next_pos == 8
