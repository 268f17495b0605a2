"""BlockPool: against a model that is too simple to be wrong, and its rules by name."""

import tracemalloc
from array import array
from collections import Counter
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.errors import Corruption
from engine.kv import block_pool
from engine.kv.block_pool import BlockNotAlive, BlockPool, RefcountBelowZero, UnknownBlock
from engine.kv.free_library import Library
from tests.fresh_process import in_fresh_process
from tests.kv.freeing import assert_alike, give_library

TOTAL = 12


def make_pool(total: int = TOTAL, library: Library | None = None) -> tuple[BlockPool, list[int]]:
    forgotten: list[int] = []
    return BlockPool(total, forgotten.append, library=library), forgotten


@pytest.fixture(params=["loop", "library"])
def library(request: pytest.FixtureRequest) -> Library | None:
    """How long lists are given back."""
    return give_library() if request.param == "library" else None


class PoolAgainstModel(RuleBasedStateMachine):
    """The model: who holds which references, and an ordered list of cached blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.forgotten = make_pool()
        self.held: list[list[int]] = []
        self.hashed: set[int] = set()
        self.cached: list[int] = []

    def references(self) -> Counter[int]:
        return Counter(block for blocks in self.held for block in blocks)

    @rule(count=st.integers(0, TOTAL + 1))
    def take(self, count: int) -> None:
        free = TOTAL - len(self.cached) - len(self.references())
        self.forgotten.clear()
        blocks = self.pool.try_take(count)
        if count > free + len(self.cached):
            assert blocks is None
            assert self.forgotten == []
            return
        assert len(blocks) == count
        assert not set(blocks) & set(self.references())
        reused = max(0, count - free)
        assert self.forgotten == self.cached[:reused], "free first, then the oldest cached"
        self.hashed -= set(self.cached[:reused])
        del self.cached[:reused]
        self.held.append(blocks)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        blocks = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.pool.free(blocks)
        left = self.references()
        for block in reversed(blocks):
            if block in self.hashed and not left[block]:
                self.cached.append(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def share_with_another(self, data: st.DataObject) -> None:
        blocks = data.draw(st.sampled_from(self.held))
        length = data.draw(st.integers(0, len(blocks)))
        self.pool.share(blocks[:length])
        self.held.append(blocks[:length])

    @precondition(lambda self: self.cached)
    @rule(data=st.data())
    def hit_cached(self, data: st.DataObject) -> None:
        blocks = data.draw(st.lists(st.sampled_from(self.cached), unique=True))
        self.pool.share(blocks)
        self.held.append(blocks)
        self.cached = [block for block in self.cached if block not in blocks]

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def hash_block(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.references())))
        self.pool.mark_hashed(block)
        self.hashed.add(block)

    @rule(data=st.data())
    def give_or_share_what_nobody_has_is_refused_whole(self, data: st.DataObject) -> None:
        alive = self.references()
        dead = [block for block in range(TOTAL) if block not in alive]
        if dead:
            block = data.draw(st.sampled_from(dead))
            with pytest.raises(RefcountBelowZero) as raised:
                self.pool.free([*alive, block])
            assert raised.value.block == block
            if block not in self.cached:
                with pytest.raises(BlockNotAlive):
                    self.pool.share([*alive, block])
                with pytest.raises(BlockNotAlive):
                    self.pool.mark_hashed(block)

    @invariant()
    def agrees_with_the_model(self) -> None:
        references = self.references()
        pool = self.pool
        for block in range(TOTAL):
            assert pool.references(block) == references[block]
            assert pool.is_hashed(block) == (block in self.hashed)
            assert pool.is_writable(block) == (references[block] == 1 and block not in self.hashed)
        assert pool.active_count == len(references)
        assert pool.cached_blocks() == self.cached
        assert pool.cached_count == len(self.cached)
        assert pool.free_count + pool.cached_count + pool.active_count == TOTAL
        assert sorted([*pool.free_blocks(), *self.cached, *references]) == list(range(TOTAL))


TestPoolAgainstModel = PoolAgainstModel.TestCase
TestPoolAgainstModel.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True
)


class PoolThatTakesAllAsMany(PoolAgainstModel):
    """Every list that is given back goes the way of long ones."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(TOTAL, self.forgotten.append, library=give_library())
        self.few = mock.patch.object(block_pool, "_FEW", 1)
        self.few.start()

    def teardown(self) -> None:
        self.few.stop()


TestPoolThatTakesAllAsMany = PoolThatTakesAllAsMany.TestCase
TestPoolThatTakesAllAsMany.settings = TestPoolAgainstModel.settings


@given(data=st.data(), total=st.integers(1, 40))
@settings(max_examples=150, deadline=None, derandomize=True)
def test_what_is_given_back_as_an_array_is_as_if_given_one_by_one(
    data: st.DataObject, total: int
) -> None:
    """Order of both lists, counts and marks, with any mix of shared, hashed and repeated blocks."""
    libraries = (None, give_library())
    pools, logs = zip(*(make_pool(total, library) for library in libraries), strict=True)
    held: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 8))):
        count = data.draw(st.integers(0, total))
        taken = [pool.try_take(count) for pool in pools]
        assert taken[0] == taken[1]
        for block in taken[0] or ():
            if data.draw(st.booleans()):
                for pool in pools:
                    pool.mark_hashed(block)
        held += [taken[0]] * (taken[0] is not None)
        if held and data.draw(st.booleans()):
            again = data.draw(st.lists(st.sampled_from([*held[0], *held[-1]] or [None])))
            again = [block for block in again if block is not None]
            for pool in pools:
                pool.share(again)
            held.append(again)
        if held:
            blocks = held.pop(data.draw(st.integers(0, len(held) - 1)))
            pools[0].free(blocks)
            with mock.patch.object(block_pool, "_FEW", 1):
                pools[1].free(array("i", blocks))
        assert_alike(*pools)
        assert pools[0].reference_count == sum(map(len, held))
    assert logs[0] == logs[1]


@pytest.mark.parametrize("wrong", [2**31, 2**32, 2**32 + 1, -(2**31), -(2**32)])
def test_a_number_that_fits_no_block_is_refused_in_a_long_list(
    wrong: int, library: Library | None
) -> None:
    pool, _ = make_pool(200, library)
    blocks = pool.try_take(100)
    with pytest.raises(UnknownBlock):
        pool.free([*blocks, wrong])
    assert (pool.active_count, pool.reference_count) == (100, 100)


def test_a_long_list_with_a_wrong_block_is_refused_whole(library: Library | None) -> None:
    pool, _ = make_pool(200, library)
    blocks = pool.try_take(100)
    pool.mark_hashed(blocks[7])
    for wrong, error in (
        ([*blocks, 150], RefcountBelowZero),
        ([*blocks, 200], UnknownBlock),
        ([-1, *blocks], UnknownBlock),
    ):
        with pytest.raises(error):
            pool.free(wrong)
        assert (pool.active_count, pool.cached_count, pool.free_count) == (100, 0, 100)
    pool.share(blocks[:1])
    pool.free([*blocks, blocks[0]])  # two entries of one edited table may name one block
    assert (pool.active_count, pool.cached_count, pool.free_count) == (0, 1, 199)


def test_shortage_is_a_value_and_takes_nothing() -> None:
    pool, _ = make_pool()
    pool.try_take(10)
    assert pool.try_take(3) is None
    assert pool.free_count == 2


def test_a_sessions_tail_is_taken_before_its_prefix() -> None:
    pool, forgotten = make_pool()
    blocks = pool.try_take(TOTAL)
    for block in blocks:
        pool.mark_hashed(block)
    pool.free(blocks)
    assert pool.cached_count == TOTAL
    pool.try_take(5)
    assert forgotten == blocks[:-6:-1]


def test_shared_block_survives_first_owner_closing() -> None:
    pool, _ = make_pool()
    blocks = pool.try_take(2)
    pool.share(blocks)
    pool.free(blocks)
    assert pool.active_count == 2
    pool.free(blocks)
    assert pool.free_count == TOTAL


def test_corruption_carries_the_block() -> None:
    pool, _ = make_pool()
    with pytest.raises(RefcountBelowZero) as below:
        pool.free([7])
    assert below.value.block == 7
    assert isinstance(below.value, Corruption)
    with pytest.raises(UnknownBlock) as unknown:
        pool.share([TOTAL])
    assert (unknown.value.block, unknown.value.total) == (TOTAL, TOTAL)
    with pytest.raises(UnknownBlock):
        pool.free([-1])


def test_the_same_block_given_twice_in_one_list_is_corruption() -> None:
    pool, _ = make_pool()
    (block,) = pool.try_take(1)
    with pytest.raises(RefcountBelowZero):
        pool.free([block, block])


def test_a_million_blocks_take_flat_memory() -> None:
    built, after = in_fresh_process(traced_bytes_of_a_million_blocks)
    assert built < 20_000_000
    assert after < built + 200_000


def traced_bytes_of_a_million_blocks() -> tuple[int, int]:
    tracemalloc.start()
    pool, _ = make_pool(1_000_000)
    built, _ = tracemalloc.get_traced_memory()
    for _ in range(3):
        blocks = pool.try_take(1000)
        for block in blocks:
            pool.mark_hashed(block)
        pool.free(blocks)
    del blocks
    after, _ = tracemalloc.get_traced_memory()
    assert (pool.free_count, pool.cached_count) == (997_000, 3000)
    return built, after


def test_a_block_that_is_hashed_no_longer_is_free_once_given_back() -> None:
    pool = BlockPool(2, forget=lambda block: pytest.fail(f"{block} was told to be forgotten"))
    [block] = pool.try_take(1)
    pool.mark_hashed(block)
    pool.unmark_hashed(block)
    pool.free([block])
    assert (pool.free_count, pool.cached_count) == (2, 0)
    with pytest.raises(BlockNotAlive):
        pool.unmark_hashed(block)


def test_a_cached_block_that_is_discarded_is_free() -> None:
    pool = BlockPool(3, lambda _: None)
    block, other = pool.try_take(2)
    pool.mark_hashed(block)
    with pytest.raises(BlockNotAlive):
        pool.discard(block)  # somebody refers to it
    pool.free([block])
    assert (pool.free_count, pool.cached_count) == (1, 1)
    pool.discard(block)
    assert (pool.free_count, pool.cached_count) == (2, 0)
    assert not pool.is_hashed(block)
    with pytest.raises(BlockNotAlive):
        pool.discard(block)
    pool.free([other])
    assert pool.try_take(3) is not None
