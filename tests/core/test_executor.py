"""The executor alone: all or nothing, copies, and how much gives way at once."""

import pytest

from engine.counters import Counters
from engine.kv.context import Activity, Context, CutTooLong
from engine.kv.eviction import PlacementConfig
from engine.kv.executor import Executor
from engine.kv.tiers.tiers import no_tiers
from policies.lru import LeastRecentlyUsed
from policies.plan import PlacementPlan, ReleaseKv
from policies.views import PlacementView
from tests.fakes.fake_clock import FakeClock


class Memory(Executor):
    def __init__(self, num_blocks: int, policy: object = LeastRecentlyUsed()) -> None:
        self.copies: list[tuple[int, int]] = []
        self.counters = Counters()
        super().__init__(
            num_blocks=num_blocks,
            block_size=4,
            fingerprint="fake",
            caching=True,
            max_replay_tokens=1000,
            copy_block=lambda source, target: self.copies.append((source, target)),
            zero_block=lambda _block: None,
            placement=PlacementConfig(name="test", policy=policy),
            tiers=no_tiers(),
            counters=self.counters,
            clock=FakeClock(tick_s=1),
        )

    def context(self, session: str, tokens: int, kept: int = 0) -> Context:
        self.open(session, b"", [ord(session[0])] * tokens, tokens)
        context = self.contexts[session]
        if kept:
            assert self.try_reserve(context, kept)
            self.begin(context, kept, None)
            self.note_computed(context, kept)
        return context


def test_reserving_takes_all_or_nothing() -> None:
    memory = Memory(4)
    context = memory.context("a", 40)
    assert not memory.try_reserve(context, 17)
    assert memory.pool.free_count == 4
    assert memory.try_reserve(context, 16)
    assert memory.pool.free_count == 0
    assert memory.try_reserve(context, 16), "it has them already"


def test_a_hashed_tail_is_copied_before_it_is_written() -> None:
    memory = Memory(4)
    context = memory.context("a", 8, kept=8)
    memory.cut(context, 6)
    context.append([1])
    hashed = context.table.blocks[1]
    assert memory.pool.is_hashed(hashed)
    assert memory.try_reserve(context, 1)
    assert memory.copies == [(hashed, context.table.blocks[1])]
    assert memory.pool.is_writable(context.table.blocks[1])
    assert memory.pool.cached_count == 1, "the old one can be hit again"


def test_a_little_more_is_evicted_than_is_needed_now() -> None:
    memory = Memory(128)
    for number in range(128):
        memory.context(f"{number:03}", 4, kept=4)
    assert memory.try_reserve(memory.context("new", 1), 1)
    assert memory.counters.evictions == {"drop": 6}
    assert memory.contexts["000"].table.kept_len == 0
    assert memory.contexts["005"].table.kept_len == 0


def test_running_contexts_and_the_receiver_are_never_offered() -> None:
    offered: list[str] = []

    class Sees:
        def plan(self, view: PlacementView) -> PlacementPlan:
            offered.extend(facts.session for facts in view.contexts)
            return LeastRecentlyUsed().plan(view)

    memory = Memory(4, Sees())
    memory.context("running", 4, kept=4).activity = Activity.RUNNING
    memory.context("waiting", 4, kept=4).activity = Activity.WAITING
    memory.context("empty", 4)
    receiver = memory.context("receiver", 20, kept=4)
    assert memory.try_reserve(receiver, 8)
    assert offered == ["waiting"]


def test_when_a_policy_breaks_a_law_or_fails_lru_decides_and_the_log_tells(caplog) -> None:
    class Greedy:
        def plan(self, view: PlacementView) -> PlacementPlan:
            return PlacementPlan(actions=[ReleaseKv(session=f.session) for f in view.contexts])

    class Broken:
        def plan(self, view: PlacementView) -> PlacementPlan:
            raise ZeroDivisionError

    for policy, words in ((Greedy(), "enough blocks are freed"), (Broken(), "ZeroDivisionError")):
        memory = Memory(4, policy)
        for session in ("a", "b"):
            memory.context(session, 8, kept=8)
        assert memory.try_reserve(memory.context("c", 1), 1)
        assert [memory.contexts[name].table.kept_len for name in "ab"] == [0, 8]
        assert words in caplog.text


def test_a_distrusted_context_leaves_no_block_that_could_be_hit() -> None:
    memory = Memory(4)
    context = memory.context("a", 16, kept=6)
    other = memory.context("b", 4)
    assert memory.try_reserve(context, 7)
    memory.begin(context, 7, None)
    memory.distrust(context)
    assert (context.table.kept_len, memory.pool.free_count, len(memory.cache)) == (0, 4, 0)
    assert len(context.ids) == 16
    assert memory.outstanding(other, 4) == 4


def test_a_context_is_not_cut_to_more_than_it_has() -> None:
    memory = Memory(4)
    context = memory.context("a", 8, kept=8)
    with pytest.raises(CutTooLong) as raised:
        memory.cut(context, 9)
    assert (raised.value.length, raised.value.there) == (9, 8)
    assert context.table.kept_len == 8
