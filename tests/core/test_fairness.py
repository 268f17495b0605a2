"""Whose turn comes next: virtual token counters, weights, priorities, limits of users."""

from collections import Counter

import pytest

from engine.core.fairness import VirtualCounters, WaitingTurn, in_order
from engine.ipc.messages import Terms, TurnFailed
from engine.ipc.queries import GetResidency, Residency
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}
LOW, NORMAL, HIGH = range(3)


def candidate(
    turn: str, *, tokens: int = 10, priority: int = NORMAL, **fields: object
) -> WaitingTurn[str]:
    values = {"weight": 1.0, "begun": False} | fields
    return WaitingTurn(turn, turn[0].encode(), priority, tokens, **values)


def order(*candidates: WaitingTurn[str], served: dict[bytes, float] | None = None) -> list[str]:
    return list(in_order(candidates, lambda owner: (served or {}).get(owner, 0.0)))


class TestOrder:
    def test_owners_take_turns_by_their_tokens(self) -> None:
        candidates = [
            candidate("a1"),
            candidate("a2"),
            candidate("a3"),
            candidate("b1"),
            candidate("b2", tokens=1),
        ]
        assert order(*candidates) == ["a1", "b1", "a2", "b2", "a3"]

    def test_one_owner_is_served_as_it_came(self) -> None:
        candidates = [candidate("a1", tokens=500), candidate("a2", tokens=1), candidate("a3")]
        assert order(*candidates) == ["a1", "a2", "a3"]

    def test_whoever_had_least_comes_first(self) -> None:
        candidates = [candidate("a1"), candidate("b1"), candidate("b2")]
        assert order(*candidates, served={b"a": 15.0}) == ["b1", "b2", "a1"]

    def test_a_weight_counts_as_so_many_owners(self) -> None:
        candidates = [candidate(f"a{n}", weight=2.0) for n in range(4)] + [
            candidate("b0"),
            candidate("b1"),
        ]
        assert order(*candidates) == ["a0", "b0", "a1", "a2", "b1", "a3"]

    def test_priorities_come_before_shares(self) -> None:
        candidates = [
            candidate("a1", priority=HIGH),
            candidate("a2", priority=HIGH),
            candidate("b1"),
        ]
        assert order(*candidates, served={b"a": 1e6}) == ["a1", "a2", "b1"]

    def test_those_that_had_to_give_way_come_back_first_and_in_their_order(self) -> None:
        candidates = [
            candidate("a1"),
            candidate("a2", begun=True),
            candidate("b1"),
            candidate("a3", begun=True),
        ]
        assert order(*candidates, served={b"a": 1e6}) == ["a2", "a3", "b1", "a1"]


class TestCounters:
    def test_having_asked_for_nothing_is_no_credit(self) -> None:
        counters = VirtualCounters()
        counters.join(b"busy")
        counters.charge(b"busy", 1000, 1.0)
        counters.join(b"new")
        assert counters.served(b"new") == 1000
        counters.charge(b"busy", 50, 1.0)
        counters.join(b"new")
        assert counters.served(b"new") == 1000, "it waits already"

    def test_who_comes_back_is_not_served_less_than_it_was(self) -> None:
        counters = VirtualCounters()
        counters.join(b"a")
        counters.charge(b"a", 700, 1.0)
        counters.leave(b"a")
        counters.join(b"b")
        assert counters.served(b"b") == 700, "as the last that waited"
        counters.charge(b"a", 300, 1.0)
        counters.join(b"a")
        assert counters.served(b"a") == 1000

    def test_weights_divide(self) -> None:
        counters = VirtualCounters()
        counters.join(b"a")
        counters.charge(b"a", 100, 4.0)
        assert counters.served(b"a") == 25

    def test_owners_that_have_no_turn_are_not_kept_for_ever(self) -> None:
        counters = VirtualCounters()
        counters.join(b"stays")
        counters.charge(b"stays", 10, 1.0)
        for number in range(5000):
            owner = str(number).encode()
            counters.join(owner)
            counters.leave(owner)
        assert len(counters) < 1100
        assert counters.served(b"stays") == 10


def users(engine: Engine, **sessions: int) -> None:
    for user, count in sessions.items():
        for number in range(count):
            engine.open(f"{user}{number}", salt=user.encode())


def started_in_order(engine: Engine) -> list[str]:
    """Names of turns by the moment they left the queue; the clock moves at every look."""
    starts = [(e.queue_ms, turn) for turn in engine.events if (e := engine.started(turn))]
    return [turn for _, turn in sorted(starts)]


def test_t41_a_flood_of_one_user_holds_up_another_by_two_turns_at_most(make_engine) -> None:
    engine = make_engine(num_blocks=512, max_num_seqs=1, max_num_batched_tokens=256, **QUIET)
    users(engine, a=50, b=1)
    flood = [
        engine.submit(f"a{n}", [n + 1] * 2000, max_output_tokens=2, stop_ids=[]) for n in range(50)
    ]
    engine.step()
    mine = engine.submit("b0", [99] * 50, max_output_tokens=2, stop_ids=[])
    engine.step_until(lambda: engine.ending(mine) is not None)
    assert sum(engine.ending(turn) is not None for turn in flood) <= 2
    engine.run()
    assert all(engine.kept(turn) for turn in flood), "and nobody is forgotten"
    engine.check()


@pytest.mark.parametrize(("weight", "share"), [(1.0, 0.5), (3.0, 0.75)])
def test_two_users_who_want_all_share_by_their_weights(
    make_engine, weight: float, share: float
) -> None:
    engine = make_engine(num_blocks=256, max_num_seqs=1, max_num_batched_tokens=64, **QUIET)
    users(engine, a=40, b=40)
    turns = {}
    for user, terms in (("a", Terms(weight=weight)), ("b", Terms())):
        for n in range(40):
            turn = engine.submit(
                f"{user}{n}", [n + 1] * 32, max_output_tokens=4, stop_ids=[], terms=terms
            )
            turns[turn] = user
    engine.step_until(lambda: sum(engine.ending(turn) is not None for turn in turns) == 40)
    done = Counter(user for turn, user in turns.items() if engine.ending(turn))
    assert done["a"] / 40 == pytest.approx(share, abs=0.05)
    engine.run()
    engine.check()


def test_a_long_prompt_of_a_user_who_asks_for_little_goes_on_beside_a_flow_of_short_ones(
    make_engine,
) -> None:
    engine = make_engine(num_blocks=512, max_num_seqs=8, max_num_batched_tokens=64, **QUIET)
    users(engine, a=200, b=1)
    flow = iter(range(200))

    def feed() -> None:
        while len(engine.loop.queue) < 16 and (n := next(flow, None)) is not None:
            engine.submit(f"a{n}", [n + 1] * 60, max_output_tokens=1, stop_ids=[])

    feed()
    engine.step()
    mine = engine.submit("b0", [999] * 640, max_output_tokens=1, stop_ids=[])
    for _ in range(60):
        feed()
        engine.step()
        if engine.ending(mine):
            break
    assert engine.ending(mine), "a quarter of each step is 16 tokens: 40 steps"


def test_high_priority_leaves_the_queue_before_normal_and_normal_before_low(make_engine) -> None:
    engine = make_engine(max_num_seqs=1, **QUIET)
    users(engine, a=4)
    names = {}
    for n, priority in enumerate((NORMAL, LOW, NORMAL, HIGH)):
        turn = engine.submit(f"a{n}", [n + 1] * 20, terms=Terms(priority=priority))
        names[turn] = n
    engine.run()
    assert [names[turn] for turn in started_in_order(engine)] == [3, 0, 2, 1]


def test_the_lowest_priority_gives_way_first_and_returns_in_its_place(make_engine) -> None:
    engine = make_engine(num_blocks=8, max_num_seqs=4, **QUIET)
    users(engine, low=1, old=1, young=1)
    low = engine.submit(
        "low0", [1] * 30, max_output_tokens=40, stop_ids=[], terms=Terms(priority=LOW)
    )
    engine.step(2)
    old = engine.submit("old0", [2] * 30, max_output_tokens=40, stop_ids=[])
    young = engine.submit("young0", [3] * 10, max_output_tokens=20, stop_ids=[])
    engine.step_until(lambda: engine.stats().preemptions_total > 0)
    waiting = [slot.turn for slot in engine.loop.queue.waiting]
    assert waiting == [low], "the first to come, but the lowest"
    engine.run()
    assert all(len(engine.kept(turn)) > 20 for turn in (low, old, young))
    engine.check()


class TestTerms:
    def test_users_have_limits_of_their_own(self, make_engine) -> None:
        engine = make_engine(num_blocks=64, **QUIET)
        users(engine, small=2, large=2)
        for user, most in (("small", 3), ("large", None)):
            for n in range(2):
                terms = Terms(max_blocks=most)
                engine.turn(f"{user}{n}", [n + 1] * 40, max_output_tokens=1, terms=terms)
        blocks = [engine.view(name).blocks for name in ("small0", "small1", "large0", "large1")]
        assert blocks == [0, 3, 3, 3]

    def test_the_settings_limit_holds_beside_the_users(self, make_engine) -> None:
        engine = make_engine(num_blocks=64, max_user_resident_blocks=4, **QUIET)
        users(engine, a=2)
        for n in range(2):
            terms = Terms(max_blocks=60)
            engine.turn(f"a{n}", [n + 1] * 40, max_output_tokens=1, terms=terms)
        assert [engine.view(name).blocks for name in ("a0", "a1")] == [0, 3]

    def test_a_turn_that_the_quota_can_never_hold_is_refused_by_its_name(self, make_engine) -> None:
        engine = make_engine(num_blocks=64, **QUIET)
        users(engine, a=1)
        turn = engine.turn("a0", [1] * 60, terms=Terms(max_blocks=4))
        ending = engine.ending(turn)
        assert isinstance(ending, TurnFailed)
        assert "the quota's max_resident_blocks is 4" in ending.message
        assert engine.kept(engine.turn("a0", [1] * 40, terms=Terms(max_blocks=4)))

    def test_limits_go_with_the_last_session(self, make_engine) -> None:
        engine = make_engine(**QUIET)
        users(engine, a=1)
        engine.turn("a0", [1] * 20, terms=Terms(max_blocks=9))
        usage = engine.loop.memory.usage
        assert usage.max_blocks(b"a") == 9
        engine.close("a0")
        assert not usage.has_limits


def test_residency_tells_who_holds_how_much_and_shared_blocks_are_divided(make_engine) -> None:
    engine = make_engine(**QUIET)
    users(engine, a=1, b=1)
    engine.turn("a0", [1] * 47, max_output_tokens=1)
    engine.turn("b0", [2] * 20, max_output_tokens=1)
    engine.fork("a1", "a0", 32)
    answer = engine.loop.answer(GetResidency(sessions=("a0", "b0", "a1", "unknown")))
    assert isinstance(answer, Residency)
    assert answer.looked_at == 4
    blocks = {name: held / KV_BYTES_PER_BLOCK for name, held in answer.kv_bytes.items()}
    assert blocks == {"a0": 2.0, "b0": 2.0, "a1": 1.0}
    assert sum(blocks.values()) == engine.stats().active_blocks
