"""Who gives way in the engine: hints, watermarks, tiers, and no standstill."""

import pytest

from engine.ipc.messages import TurnDone, TurnIncomplete
from engine.kv.context import Activity
from engine.kv.eviction import TierState
from policies.registry import BUILT_IN
from tests.core.test_executor import Memory

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}


def filled(make_engine, sessions: str, *, tokens: int = 40, **settings: object):
    """Idle sessions of three blocks each, used one after the other."""
    engine = make_engine(**{**QUIET, **settings})
    for session in sessions:
        engine.open(session)
        engine.turn(session, [ord(session)] * tokens, max_output_tokens=1)
    return engine


def kept(engine, sessions: str) -> str:
    return "".join(session for session in sessions if engine.view(session).blocks)


def newcomer(engine, tokens: int = 40) -> None:
    engine.open("z")
    turn = engine.turn("z", [9] * tokens, max_output_tokens=1)
    assert isinstance(engine.ending(turn), TurnDone | TurnIncomplete)
    engine.close("z")


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_pinned_sessions_are_parked_for_a_newcomer(make_engine, policy: str) -> None:
    """T11 (sglang#27024): 100 blocks, 5 idle pinned sessions of 20, a newcomer that needs 10."""
    engine = filled(
        make_engine, "abcde", num_blocks=100, tokens=16 * 19 + 4, placement_policy=policy
    )
    for session in "abcde":
        engine.hint(session, ttl_s=10_000, priority=2)
    newcomer(engine, tokens=150)
    assert len(kept(engine, "abcde")) == 4
    assert "a" not in kept(engine, "abcde"), "the coldest"


@pytest.mark.parametrize("policy", ["lru", "cost_aware", "priority"])
def test_intent_outranks_recency_until_its_time_is_over(make_engine, policy: str) -> None:
    """T12 (vllm#52113): A may return within 60 s, B has said nothing; A was used before B."""
    engine = filled(make_engine, "ab", num_blocks=8, placement_policy=policy)
    engine.hint("a", ttl_s=60)
    newcomer(engine)
    assert kept(engine, "ab") == "a"

    engine = filled(make_engine, "ab", num_blocks=8, placement_policy=policy)
    engine.hint("a", ttl_s=60)
    engine.clock.advance(61)
    newcomer(engine)
    assert kept(engine, "ab") == "b", "an ordinary session by now"


def test_a_hint_can_be_changed_after_the_fact(make_engine) -> None:
    """T12, second part: a time fixed beforehand fails, what is said later must count."""
    engine = filled(make_engine, "ab", num_blocks=8, placement_policy="priority")
    engine.hint("a", priority=2)
    engine.hint("b", priority=2)
    engine.hint("b", ttl_s=1, priority=0)
    newcomer(engine)
    assert kept(engine, "ab") == "a"
    engine.hint("a", priority=1)
    assert engine.loop.memory.usage.of("a").priority == 1


def test_a_time_to_live_begins_anew_with_each_turn(make_engine) -> None:
    engine = filled(make_engine, "ab", num_blocks=9)
    engine.hint("a", ttl_s=60)
    engine.clock.advance(50)
    engine.turn("a", [1], max_output_tokens=1)
    engine.turn("b", [1], max_output_tokens=1)
    engine.clock.advance(50)
    newcomer(engine, tokens=60)
    assert kept(engine, "ab") == "a"


def test_hints_survive_a_context_that_is_set_anew_but_not_a_close(make_engine) -> None:
    engine = make_engine(**QUIET)
    usage = engine.loop.memory.usage
    engine.hint("a", priority=2)
    assert len(usage) == 0, "nothing is kept of sessions that were never opened"
    engine.open("a")
    engine.hint("a", priority=2)
    engine.open("a", [1, 2, 3])
    assert usage.of("a").priority == 2
    engine.close("a")
    assert len(usage) == 0


def test_idle_sessions_give_way_above_the_high_watermark_before_anyone_needs_blocks(
    make_engine,
) -> None:
    engine = filled(make_engine, "ab", num_blocks=10, kv_high_watermark=0.8, kv_low_watermark=0.6)
    assert kept(engine, "ab") == "ab", "6 of 10 blocks"
    engine.open("c")
    engine.turn("c", [7] * 40, max_output_tokens=1)
    assert kept(engine, "abc") == "bc", "9 of 10: down to 6"
    engine.turn("c", [7] * 20, max_output_tokens=1)
    assert kept(engine, "abc") == "bc", "8 of 10: between the watermarks nobody moves"


def test_no_session_gives_way_more_often_than_it_took_turns(make_engine) -> None:
    """No cycle of swapping: KV comes back for a turn only, and that turn then runs."""
    engine = make_engine(num_blocks=8, placement_policy="cost_aware", **QUIET)
    sessions, turns = "abcde", 0
    for session in sessions:
        engine.open(session)
    for _round in range(6):
        submitted = [
            engine.submit(session, [ord(session)] * 20, max_output_tokens=2, stop_ids=[])
            for session in sessions
        ]
        engine.run()
        turns += len(submitted)
        assert all(engine.ending(turn) for turn in submitted)
        for session in sessions:
            engine.truncate(session, 20)
    assert 0 < sum(engine.stats().evictions_total.values()) <= turns


class Tiered(Memory):
    """Swaps out slowly: blocks come free when a test says so."""

    def __init__(self, num_blocks: int, policy: object) -> None:
        super().__init__(num_blocks, policy)
        self.moving = []
        self.kv_transfer.tier_state = self._tier_facts

    def _tier_facts(self) -> TierState:
        moving = sum(context.table.block_count for context in self.moving)
        return TierState(swaps=True, restore_s=0.1, transferring_blocks=moving)

    def swap_out(self, context) -> None:
        self.moving.append(context)

    def finish(self) -> None:
        while self.moving:
            self.release(self.moving.pop())


def test_what_is_on_its_way_to_a_tier_is_waited_for() -> None:
    memory = Tiered(4, BUILT_IN["lru"]())
    for session in "ab":
        memory.context(session, 8, kept=8)
    newcomer = memory.context("c", 8)
    assert not memory.try_reserve(newcomer, 8)
    assert [context.session for context in memory.moving] == ["a"]
    assert not memory.try_reserve(newcomer, 8)
    assert len(memory.moving) == 1, "nobody else gives way for the same need"
    memory.finish()
    assert memory.try_reserve(newcomer, 8)
    assert memory.counters.evictions == {"swap": 1}


def test_a_plan_stops_once_enough_is_there() -> None:
    """What two idle ones share comes free with the second; the facts could not tell."""
    memory = Memory(6, BUILT_IN["lru"]())
    memory.fork(memory.context("a", 8, kept=8), "b", 8)
    memory.context("queued", 8, kept=8).activity = Activity.WAITING
    memory.context("running", 8, kept=8).activity = Activity.RUNNING
    assert memory.try_reserve(memory.context("d", 8), 8)
    assert memory.counters.evictions == {"drop": 2}
    assert memory.contexts["queued"].table.block_count == 2


@pytest.mark.parametrize("policy", sorted(BUILT_IN))
def test_placement_never_changes_a_token(make_engine, policy: str) -> None:
    def replies(num_blocks: int) -> list[list[int]]:
        engine = make_engine(num_blocks=num_blocks, placement_policy=policy, kv_high_watermark=0.9,
                             kv_low_watermark=0.6, **QUIET)  # fmt: skip
        for session in "abcd":
            engine.open(session)
        turns = []
        for size in (5, 30, 17):
            turns += [engine.submit(session, [ord(session)] * size) for session in "abcd"]
            engine.hint("b", ttl_s=1000 / size, priority=size % 3)
            engine.run()
        assert bool(engine.stats().evictions_total) == (num_blocks < 64)
        return [engine.kept(turn) for turn in turns]

    assert replies(10) == replies(64)
