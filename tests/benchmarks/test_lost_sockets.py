"""What is made of the notes that client, gateway and engine take of a lost socket."""

import pytest

from benchmarks.lost_sockets import Drop, EngineNote, judge

STEPS = [(1.0, 1.02), (1.021, 1.05), (1.051, 1.08)]


@pytest.mark.parametrize(
    ("dropped_s", "told_s", "free_s", "step", "added", "late"),
    [
        (1.03, 1.031, 1.0503, 20, 0.3, False),
        (1.049, 1.052, 1.0803, 1, 30.3, True),  # the next step had begun
        (1.0504, 1.0505, 1.0506, 0, 0.2, True),  # between two steps there is none to wait for
        (1.2, 1.201, 1.2011, 0, 1.1, True),  # nor when all others have ended
    ],
)
def test_what_is_added_to_the_step_in_flight(dropped_s, told_s, free_s, step, *, added, late):
    note = EngineNote(session="s", free_s=free_s, steps=STEPS)
    found = judge(Drop(session="s", dropped_s=dropped_s), told_s, note)
    assert found.late is late
    assert (found.step, found.added) == (pytest.approx(step), pytest.approx(added))
    assert found.told == pytest.approx(1000 * (told_s - dropped_s))
    assert found.free == pytest.approx(1000 * (free_s - dropped_s))
