"""A user who runs nothing gets in beside one who runs much, and nobody waits for ever."""

import random
from collections import Counter

import pytest

from engine.core.fairness import WaitingTurn, in_order, newcomers
from engine.ipc.messages import Terms, TurnFailed
from engine.kv.eviction import Eviction
from tests.harness.loop import Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}
LOW, NORMAL, HIGH = range(3)


def candidate(turn: str, *, begun: bool = False, priority: int = NORMAL) -> WaitingTurn[str]:
    return WaitingTurn(turn, turn[0].encode(), priority, 10, 1.0, begun)


@pytest.mark.parametrize(
    ("candidates", "first", "expected"),
    [
        ([candidate("a1", begun=True), candidate("b1")], b"b", ["b1", "a1"]),
        ([candidate("a1", begun=True), candidate("b1")], b"", ["a1", "b1"]),
        ([candidate("a1", begun=True), candidate("b1"), candidate("b2")], b"b", ["b1", "a1", "b2"]),
        ([candidate("b1"), candidate("b2", begun=True)], b"b", ["b2", "b1"]),
        ([candidate("a1"), candidate("c1"), candidate("b1")], b"bc", ["c1", "b1", "a1"]),
        ([candidate("a1", priority=HIGH), candidate("b1")], b"b", ["a1", "b1"]),
    ],
)
def test_one_turn_of_each_newcomer_comes_first(
    candidates: list[WaitingTurn[str]], first: bytes, expected: list[str]
) -> None:
    owners = {bytes([owner]) for owner in first}
    assert list(in_order(candidates, lambda _: 0.0, owners)) == expected


@pytest.mark.parametrize(
    ("weights", "served", "running_slots", "expected"),
    [
        ({b"a": 1, b"b": 1}, {b"b": 900}, 2, {b"b"}),
        ({b"a": 1, b"b": 1}, {b"b": 900}, 1, set()),
        ({b"a": 1, b"b": 1}, {b"a": 900}, 1, {b"b"}),
        ({b"a": 3, b"b": 1}, {b"b": 900}, 3, set()),
        ({b"a": 3, b"b": 1}, {b"b": 900}, 4, {b"b"}),
    ],
)
def test_a_newcomer_runs_nothing_and_has_a_slot_for_share_or_had_least(
    weights: dict[bytes, float],
    served: dict[bytes, float],
    running_slots: int,
    expected: set[bytes],
) -> None:
    assert newcomers(weights, {b"a"}, lambda owner: served.get(owner, 0), running_slots) == expected


def flood(engine: Engine, *, turns: int, prompt: int, reply: int, user: str = "a") -> list[str]:
    begun = []
    for number in range(turns):
        engine.open(f"{user}{number}", salt=user.encode())
        begun.append(
            engine.submit(
                f"{user}{number}", [number + 1] * prompt, max_output_tokens=reply, stop_ids=[]
            )
        )
    return begun


def steps_until_started(engine: Engine, turn: str) -> int:
    for steps in range(1, 1000):
        engine.step()
        if engine.started(turn) is not None:
            return steps
    raise AssertionError("never")


@pytest.mark.parametrize("running_slots", [2, 32])
@pytest.mark.parametrize("before", [1, 40])
def test_t41_a_short_turn_starts_within_two_steps_of_anothers_50_long_ones(
    make_engine, running_slots: int, before: int
) -> None:
    engine = make_engine(
        num_blocks=2048, max_num_seqs=running_slots, max_num_batched_tokens=256, **QUIET
    )
    theirs = flood(engine, turns=50, prompt=200, reply=120)
    engine.step(before)
    for number in range(5):
        engine.open(f"b{number}", salt=b"b")
        mine = engine.submit(f"b{number}", [99] * 30, max_output_tokens=4, stop_ids=[])
        assert steps_until_started(engine, mine) <= 2
        engine.step_until(lambda turn=mine: engine.ending(turn) is not None)
    engine.run()
    assert all(len(engine.kept(turn)) == 122 for turn in theirs), "and they lose nothing"
    assert engine.stats().preemptions_total == 0, "but their seats, for a while"
    assert engine.stats().pauses_total > 0 or before == 1, "the first step has seats left"


def test_a_short_turn_gets_its_share_of_a_pool_that_anothers_turns_fill(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256, **QUIET)
    theirs = flood(engine, turns=50, prompt=100, reply=60)
    engine.step(20)
    engine.open("b", salt=b"b")
    mine = engine.submit("b", [99] * 50, max_output_tokens=4, stop_ids=[])
    assert steps_until_started(engine, mine) <= 2
    engine.run()
    assert all(len(engine.kept(turn)) == 62 for turn in theirs)
    assert len(engine.kept(mine)) == 6


def test_more_than_its_share_is_waited_for_in_line(make_engine) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256, **QUIET)
    flood(engine, turns=20, prompt=100, reply=60)
    engine.step(8)
    preempted = engine.stats().preemptions_total
    engine.open("b", salt=b"b")
    mine = engine.submit("b", [99] * 800, max_output_tokens=4, stop_ids=[])
    engine.step(2)
    assert engine.started(mine) is None
    assert engine.stats().preemptions_total == preempted
    engine.run()
    assert len(engine.kept(mine)) == 6


def test_a_lower_priority_takes_no_running_slot(make_engine) -> None:
    engine = make_engine(num_blocks=512, max_num_seqs=2, **QUIET)
    flood(engine, turns=2, prompt=20, reply=30)
    engine.step(2)
    engine.open("b", salt=b"b")
    mine = engine.submit("b", [9] * 10, terms=Terms(priority=LOW))
    engine.step(5)
    assert engine.started(mine) is None
    engine.run()
    assert engine.kept(mine)


def test_one_user_alone_never_gives_up_a_slot(make_engine) -> None:
    engine = make_engine(num_blocks=512, max_num_seqs=2, **QUIET)
    flood(engine, turns=6, prompt=20, reply=30)
    engine.run()
    assert engine.stats().pauses_total == 0


def test_where_nobody_runs_several_turns_no_step_looks_at_those_that_wait(
    make_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(max_num_seqs=2, **QUIET)
    for user in "abcd":
        flood(engine, turns=1, prompt=20, reply=40, user=user)
    engine.step()
    looked = []
    monkeypatch.setattr(engine.loop.queue, "newcomers", lambda: looked.append(1) or set())
    for _ in range(5):
        engine.step()
    assert (engine.stats().running, engine.stats().waiting) == (2, 2)
    assert not looked
    monkeypatch.undo()
    engine.run()


def test_no_step_looks_at_every_session_for_who_wants_more_than_its_share(
    make_engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256, **QUIET)
    flood(engine, turns=20, prompt=100, reply=60)
    engine.step(8)
    engine.open("b", salt=b"b")
    mine = engine.submit("b", [99] * 800, max_output_tokens=4, stop_ids=[])
    looked = []
    monkeypatch.setattr(Eviction, "obtainable", property(lambda _: looked.append(1) or 0))
    engine.step(2)
    assert engine.started(mine) is None
    assert not looked
    monkeypatch.undo()
    engine.run()


class TestAnHour:
    """Six users, one of whom asks all the time, on a pool that holds a fifth of what they want."""

    STEP_S = 0.5
    HOUR_S = 3600.0
    LONGEST_WAIT_S = 600.0
    MODEST_WAIT_S = 300.0

    def test_nobody_starves(self, make_engine) -> None:
        engine = make_engine(num_blocks=40, max_num_seqs=6, max_num_batched_tokens=96, **QUIET)
        chance = random.Random(41)
        waits: dict[str, list[float]] = {}
        running: dict[str, tuple[str, str, float]] = {}
        begun = engine.clock()
        number = 0
        while engine.clock() < begun + self.HOUR_S or running:
            now = engine.clock()
            busy = Counter(user for user, _, _ in running.values())
            for user in "abcdef" if now < begun + self.HOUR_S else "":
                wants = busy[user] < 8 if user == "a" else chance.random() < 0.01
                if not wants:
                    continue
                number += 1
                session = f"{user}{number}"
                engine.open(session, salt=user.encode())
                prompt = chance.choice((10, 40, 120, 200))
                ids = [chance.randrange(200) for _ in range(prompt)]
                reply = chance.choice((4, 30, 90))
                turn = engine.submit(session, ids, max_output_tokens=reply, stop_ids=[])
                running[turn] = (user, session, now)
            if engine.loop.has_work:
                engine.step()
            engine.clock.advance(self.STEP_S)
            for turn in [turn for turn in running if engine.ending(turn) is not None]:
                user, session, since = running.pop(turn)
                assert not isinstance(engine.ending(turn), TurnFailed)
                waits.setdefault(user, []).append(engine.clock() - since)
                engine.close(session)
                engine.events.pop(turn)
            oldest = min((since for _, _, since in running.values()), default=now)
            assert now - oldest < self.LONGEST_WAIT_S, "somebody starves"
        assert set(waits) == set("abcdef")
        assert all(max(waits[user]) < self.MODEST_WAIT_S for user in "bcdef")
        assert len(waits["a"]) > 100, "whoever asks for much gets what is left"
        assert engine.stats().preemptions_total > 0, "memory was short"
