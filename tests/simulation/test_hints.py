"""What clients could have said, by hand."""

from engine.simulation.hints import Cut, Hints, cuts
from tests.simulation.requests import requests


def test_a_session_closes_after_its_own_last_turn() -> None:
    asked = requests("a1", "b2", "a13", "c2")
    assert cuts(asked, Hints.CLOSE) == {
        1: [Cut("b", 0, dead=False)],
        2: [Cut("a", 0, dead=False)],
        3: [Cut("c", 0, dead=False)],
    }


def test_blocks_are_dead_once_no_session_reads_them_again() -> None:
    asked = requests("a12", "b3", "c14")
    assert cuts(asked, Hints.DEAD) == {
        0: [Cut("a", 1, dead=True)],  # c begins with block 1
        1: [Cut("b", 0, dead=True)],
        2: [Cut("a", 0, dead=True), Cut("c", 0, dead=True)],
    }
