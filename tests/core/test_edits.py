"""Edits of KV that holds its position: what moves where, and what waits when blocks are short."""

from engine.counters import Counters
from engine.ipc.messages import Edit
from engine.kv.context import Activity, Context
from engine.kv.eviction import PlacementConfig
from engine.kv.executor import Executor
from engine.kv.page_table import PageMove
from engine.kv.tiers.tiers import no_tiers
from policies.lru import LeastRecentlyUsed
from tests.fakes.fake_clock import FakeClock

SIZE = 4


class Memory(Executor):
    def __init__(self, num_blocks: int) -> None:
        self.moves: list[PageMove] = []
        super().__init__(
            num_blocks=num_blocks,
            block_size=SIZE,
            fingerprint="fake",
            caching=True,
            max_replay_tokens=1000,
            copy_block=lambda _source, _target: None,
            zero_block=lambda _block: None,
            placement=PlacementConfig(name="test", policy=LeastRecentlyUsed()),
            tiers=no_tiers(),
            counters=Counters(),
            clock=FakeClock(tick_s=1),
            move_pages=self.moves.extend,
        )

    def computed(self, session: str, tokens: int) -> Context:
        self.open(session, b"", [ord(session[0]), *range(1, tokens)], tokens)
        context = self.contexts[session]
        assert self.try_reserve(context, tokens)
        self.begin(context, tokens, None)
        self.note_computed(context, tokens)
        return context

    def drop(self, context: Context, start: int, stop: int) -> None:
        self.edit(context, Edit(at=len(context.ids), dropped=((start, stop),)))


def places(move: PageMove, blocks: list[int]) -> list[int]:
    """Where a page's tokens were, as places in the context."""
    return [blocks.index(block) * SIZE + slot for block, slot in move.sources]


def test_what_is_behind_the_first_dropped_id_moves_up_in_its_own_blocks() -> None:
    memory = Memory(8)
    context = memory.computed("a", 18)
    blocks = context.table.blocks
    memory.drop(context, 6, 9)
    assert [move.target for move in memory.moves] == blocks[1:4]
    assert [places(move, blocks) for move in memory.moves] == [
        [4, 5, 9, 10], [11, 12, 13, 14], [15, 16, 17],
    ]  # fmt: skip
    assert [list(move.shifts) for move in memory.moves] == [[0, 0, -3, -3], [-3] * 4, [-3] * 3]
    assert context.table.blocks == blocks[:4]
    assert memory.pool.free_count == 4, "the last block came free"
    assert context.table.kept_len == context.table.next_pos == 15
    assert [entry[1:] for entry in context.table.entries] == [
        (0, 3, 0), (0, 3, 4), (0, 3, 8), (0, 2, 12),
    ]  # fmt: skip


def test_keys_of_what_moved_are_forgotten_and_made_anew() -> None:
    memory = Memory(8)
    context = memory.computed("a", 16)
    blocks = context.table.blocks
    before = [memory.cache.key_of(block) for block in blocks]
    memory.drop(context, 5, 6)
    after = [memory.cache.key_of(block) for block in blocks]
    assert after[0] == before[0]
    assert None not in after[:3]
    assert after[3] is None, "it is not full, and may be written on"
    assert not set(after[1:3]) & set(before)
    assert all(memory.cache.block_of(key) is None for key in before[1:])
    assert memory.pool.is_writable(blocks[3])


def test_the_end_of_a_context_leaves_without_a_move() -> None:
    memory = Memory(8)
    context = memory.computed("a", 16)
    memory.drop(context, 8, 16)
    assert memory.moves == []
    assert context.table.block_count == 2


def test_shared_pages_are_copied_to_new_blocks() -> None:
    memory = Memory(8)
    context = memory.computed("a", 12)
    memory.fork(context, "b", 12)
    shared = context.table.blocks
    memory.drop(context, 5, 7)
    assert context.table.blocks[0] == shared[0]
    assert not set(context.table.blocks[1:]) & set(shared)
    assert memory.contexts["b"].table.blocks == shared
    assert all(block in shared for move in memory.moves for block, _ in move.sources)
    assert len({move.target for move in memory.moves} & set(shared)) == 0


def test_for_want_of_blocks_nothing_moves_until_the_turn_gets_them() -> None:
    memory = Memory(4)
    context = memory.computed("a", 12)
    memory.fork(context, "b", 12)
    other = memory.contexts["b"]
    other.activity = Activity.RUNNING
    blocks = context.table.blocks
    memory.drop(context, 1, 2)  # three pages are shared, one block is free
    assert memory.moves == []
    assert context.stages
    assert context.table.blocks == blocks
    assert (len(context.ids), context.pending, context.outstanding) == (11, 0, 0)
    context.append([7])
    assert not memory.try_admit(context, 11)
    assert (memory.moves, context.table.blocks, memory.pool.free_count) == ([], blocks, 1)
    other.activity = Activity.IDLE  # now it may give way
    assert memory.try_admit(context, 11)
    assert not context.stages
    assert context.table.kept_len == 11
    assert [move.target for move in memory.moves] == context.table.blocks[:3]


def test_a_second_edit_waits_behind_one_that_is_due() -> None:
    memory = Memory(4)
    context = memory.computed("a", 12)
    memory.fork(context, "b", 12)
    memory.contexts["b"].activity = Activity.RUNNING
    memory.drop(context, 1, 2)
    memory.drop(context, 4, 6)
    assert len(context.stages) == 2
    memory.contexts["b"].activity = Activity.IDLE
    context.append([7])
    assert memory.try_admit(context, 9)
    assert not context.stages
    assert context.table.kept_len == 9
    assert len(memory.moves) == 3 + 2, "the first page is whole before the second edit"


def test_a_rewound_tail_of_moved_ids_is_written_where_it_lies_when_the_pool_is_full() -> None:
    memory = Memory(3)
    context = memory.computed("a", 12)
    memory.drop(context, 1, 2)
    context.append([7])
    assert memory.try_admit(context, 12)
    memory.begin(context, 1, None)
    memory.note_computed(context, 1)
    tail = context.table.blocks[2]
    assert memory.pool.is_hashed(tail)
    memory.cut(context, 11)
    context.append([8])
    assert memory.try_admit(context, 12)
    assert context.table.blocks[2] == tail
    assert context.table.kept_len == 11, "moved ids can't be computed again"
    assert memory.pool.is_writable(tail)
