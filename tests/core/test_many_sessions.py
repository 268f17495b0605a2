"""Work for all sessions is done a bounded part at a time, and what waits is ordered when needed."""

import random
from collections import Counter

import pytest

from engine.core import inspection
from engine.core.idle_prefill import IdlePrefill
from engine.core.pressure import Pressure
from engine.core.run_queue import RunQueue
from engine.ipc.messages import Terms
from engine.ipc.queries import GetResidency
from engine.kv.eviction import ReArrivalStats
from policies.views import TurnKind
from tests.harness.loop import KV_BYTES_PER_BLOCK, Engine

QUIET = {"idle_prefill": False, "num_speculative_tokens": 0}
LOW, NORMAL, HIGH = range(3)
KIND = TurnKind(1, 0)


def test_an_answer_about_residency_is_about_so_many_blocks(make_engine, monkeypatch) -> None:
    monkeypatch.setattr(inspection, "_MOST_BLOCKS", 3)
    engine = make_engine(**QUIET)
    names = tuple(f"a{number}" for number in range(6))
    for number, name in enumerate(names):
        engine.open(name)
        if number != 1:
            engine.turn(name, [number + 1] * 30, max_output_tokens=1)
    found: dict[str, float] = {}
    sizes, wanted = [], names
    while wanted:
        answer = engine.loop.answer(GetResidency(sessions=wanted))
        sizes.append(answer.looked_at)
        found |= answer.kv_bytes
        wanted = wanted[answer.looked_at :]
    assert sizes == [3, 2, 1]
    assert found == {name: 2 * KV_BYTES_PER_BLOCK for name in names if name != "a1"}


def test_an_idle_step_looks_at_some_sessions_only(make_engine, monkeypatch) -> None:
    looks: list[int] = []

    def noted(self, context):
        looks[-1] += 1
        return 0, 0  # as if there were nothing to be done for it

    monkeypatch.setattr(IdlePrefill, "_amount", noted)
    engine = make_engine(num_blocks=512, num_speculative_tokens=0)
    for number in range(150):
        engine.open(f"a{number}")
        looks.append(0)
        engine.submit(f"a{number}", [5, 6], max_output_tokens=1)
        while engine.loop.has_work:
            engine.step()
    engine.clock.advance(1.0)
    looks.clear()
    for _ in range(4):
        looks.append(0)
        engine.loop.step()
    assert looks == [64, 64, 22, 0]


class TestReturns:
    def test_of_a_crowd_that_is_over_an_age_some_are_counted_at_a_time(self) -> None:
        seen = ReArrivalStats(ages_s=(10, 20, 40))
        for number in range(1000):
            seen.note_idle(f"s{number}", KIND, 0)
        seen.note_arrival("s999", 15)
        for number in range(10):
            seen.note_idle(f"new{number}", KIND, 15)
            seen.note_arrival(f"new{number}", 15)
        counts = seen.counts(15)
        assert counts.watched == {KIND: (1010, 1, 0)}
        assert counts.returned == {KIND: (10, 1, 0)}

    def test_whoever_returns_is_counted_as_if_all_had_been(self) -> None:
        seen = ReArrivalStats(ages_s=(10, 20, 40))
        for number in range(300):
            seen.note_idle(f"s{number}", KIND, 0)
        seen.note_arrival("s299", 25)
        seen.note_arrival("s298", 50)  # too late to be seen
        for _ in range(3):
            seen.note_arrival("unknown", 50)
        counts = seen.counts(50)
        assert counts.watched == {KIND: (300, 300, 300)}
        assert counts.returned == {KIND: (0, 0, 1)}


# --- who may run ---------------------------------------------------------------------------------


def share_as_before(self: Pressure) -> None:
    """How it was decided when all that wait were put in order first."""
    queue = self._queue
    if len({slot.context.salt for slot in queue.running}) == len(queue.running):
        return
    newcomers = self._newcomers()
    if not newcomers:
        return
    least = min(slot.command.terms.priority for slot in newcomers)
    excess = len(queue.running) + len(newcomers) - queue.limit.now
    for victim in self._victims(least)[: max(0, excess)]:
        queue.preempt(victim)
        self._counters.pauses += 1
    self._share_blocks(newcomers)


@pytest.mark.parametrize("seed", range(12))
def test_shares_are_those_that_they_were_before(make_engine, seed: int) -> None:
    dice = random.Random(seed)
    engines = [
        make_engine(num_blocks=48, max_num_seqs=dice.choice([2, 6]), max_model_len=500, **QUIET)
    ]
    engines.append(
        make_engine(
            num_blocks=48, max_num_seqs=engines[0].config.max_num_seqs, max_model_len=500, **QUIET
        )
    )
    before = engines[1].loop._pressure  # noqa: SLF001 -- the earlier way takes its place
    before._share_among_owners = lambda: share_as_before(before)  # noqa: SLF001
    for number in range(40):
        user, priority = dice.choice("aaabcd"), dice.choice([LOW, NORMAL, NORMAL, HIGH])
        prompt, reply = dice.randint(1, 120), dice.randint(1, 40)
        steps = dice.randint(0, 4)
        for engine in engines:
            engine.open(f"{user}{number}", salt=user.encode())
            engine.submit(
                f"{user}{number}",
                [number + 1] * prompt,
                max_output_tokens=reply,
                stop_ids=[],
                terms=Terms(priority=priority),
            )
            engine.step(steps)
        assert running(engines[0]) == running(engines[1])
    for engine in engines:
        engine.run()
    first, second = (engine.stats() for engine in engines)
    assert (first.pauses_total, first.preemptions_total) == (
        second.pauses_total,
        second.preemptions_total,
    )


def running(engine: Engine) -> list[str]:
    return [slot.turn for slot in engine.loop.queue.running]


def test_turns_without_a_free_slot_are_not_put_in_order(make_engine, monkeypatch) -> None:
    """One user runs several turns of a high priority, and very many others wait below."""
    calls: Counter[str] = Counter()
    in_order, newcomers = RunQueue.in_order, RunQueue.newcomers

    def counted(name, method):
        def call(self):
            calls[name] += 1
            return method(self)

        return call

    monkeypatch.setattr(RunQueue, "in_order", counted("in_order", in_order))
    monkeypatch.setattr(RunQueue, "newcomers", counted("newcomers", newcomers))
    engine = make_engine(num_blocks=512, max_num_seqs=4, **QUIET)
    for number in range(4):
        engine.open(f"a{number}", salt=b"a")
        engine.submit(
            f"a{number}", [1], max_output_tokens=60, stop_ids=[], terms=Terms(priority=HIGH)
        )
    engine.step(3)
    for number in range(300):
        engine.open(f"b{number}", salt=str(number).encode())
        engine.submit(f"b{number}", [2], max_output_tokens=1)
    calls.clear()
    engine.step(20)
    assert calls["in_order"] <= 1, "only to report what they wait for, a few times a second"
    assert len(running(engine)) == 4
