"""What is decided under pressure: whose blocks, who begins, how many run."""

import pytest

from engine.core.pressure import (
    AdmissionCandidate,
    End,
    Preempt,
    RunningTurn,
    Shorten,
    Wait,
    admissible_count,
    next_degradation,
)
from engine.core.run_queue import RunningLimit

FRESH = RunningTurn(priority=1, preemption_count=0, wanted=50, room=5)
HIGH = FRESH._replace(priority=2)
SPENT = FRESH._replace(preemption_count=3)
FULL = SPENT._replace(room=0)
SURE = SPENT._replace(wanted=5)
SILENT = FULL._replace(wanted=0)


@pytest.mark.parametrize(
    ("streams", "needy", "step"),
    [
        ([FRESH, FRESH, FRESH], 0, Preempt(2)),
        ([FRESH, FRESH, SPENT], 0, Preempt(1)),
        ([FRESH, FRESH, SPENT], 1, Preempt(1)),
        ([FRESH, SPENT, SPENT], 0, Preempt(0)),
        ([FRESH, SPENT, SPENT], 1, Shorten(2, 5)),
        ([HIGH, SPENT, SPENT], 0, Shorten(2, 5)),
        ([HIGH, SPENT, FULL], 0, End(2)),
        ([HIGH, SPENT, SILENT], 0, Wait()),
        ([SPENT, SPENT, FULL], 0, End(2)),
        ([SPENT, SPENT, SURE], 0, Wait()),
        ([SPENT, SPENT, SILENT], 0, Wait()),
        ([FRESH, SPENT, SPENT], 2, Wait()),
        ([SPENT], 0, Preempt(0)),
    ],
)
def test_the_next_degradation_step(streams: list[RunningTurn], needy: int, step: object) -> None:
    assert next_degradation(streams, needy, 3) == step


@pytest.mark.parametrize(
    ("waiting", "running", "held", "limit", "count"),
    [
        ([AdmissionCandidate(9, spent=False)], 0, 0, 1, 1),
        ([AdmissionCandidate(9, spent=True)], 0, 0, 1, 1),
        ([AdmissionCandidate(3, spent=False)] * 3, 0, 0, 1, 3),
        ([AdmissionCandidate(6, spent=False)] * 3, 1, 6, 2, 1),
        ([AdmissionCandidate(6, spent=True)] * 3, 1, 6, 9, 0),
        ([AdmissionCandidate(4, spent=True)] * 3, 1, 6, 1, 1),
        ([AdmissionCandidate(6, spent=True), AdmissionCandidate(1, spent=False)], 1, 6, 9, 0),
        ([AdmissionCandidate(6, spent=False), AdmissionCandidate(1, spent=False)], 2, 6, 2, 0),
    ],
)
def test_who_begins(
    waiting: list[AdmissionCandidate], running: int, held: int, limit: int, count: int
) -> None:
    told = admissible_count(waiting, running=running, running_blocks=held, limit=limit, total=10)
    assert told == count


def test_the_running_limit_falls_to_what_is_left_and_rises_as_often_as_so_many_end() -> None:
    limit = RunningLimit(8)
    limit.lower(5)
    limit.lower(3)
    assert limit.now == 3
    limit.lower(7)
    assert limit.now == 3, "whatever runs above it was let in because it surely ends"
    for expected in (3, 3, 4, 4, 4, 4, 5):
        limit.note_end()
        assert limit.now == expected
    limit.lower(0)
    assert limit.now == 1, "some turn always runs"
    for _ in range(100):
        limit.note_end()
    assert limit.now == 8
    limit.lower(2)
    limit.reset()
    assert limit.now == 8
