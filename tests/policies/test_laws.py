"""check_placement: each broken law is named; a plan that obeys passes."""

import pytest

from policies.laws import BrokenLawError, check_placement
from policies.plan import PlacementPlan, ReleaseKv
from policies.views import ContextFacts, PlacementView


def view(needed: int, **blocks: int) -> PlacementView:
    contexts = [
        ContextFacts(session=session, blocks=count, last_used_s=0.0, waiting=False)
        for session, count in blocks.items()
    ]
    return PlacementView(now_s=0.0, needed_blocks=needed, contexts=contexts)


def plan(*sessions: str) -> PlacementPlan:
    return PlacementPlan(actions=[ReleaseKv(session=session) for session in sessions])


def test_enough_and_no_more_passes() -> None:
    check_placement(view(5, a=3, b=3, c=3), plan("c", "a"))


def test_all_there_is_passes_when_it_is_not_enough() -> None:
    check_placement(view(9, a=3, b=3, c=0), plan("b", "a"))


@pytest.mark.parametrize(
    ("sessions", "words"),
    [
        (["a", "b", "c"], "c is evicted although enough blocks are freed"),
        (["a", "x"], "x is not in the view"),
        (["a", "a"], "a is not in the view, or is named twice"),
        (["a"], "3 of 5 blocks"),
        ([], "0 of 5 blocks"),
    ],
)
def test_broken_laws_are_named(sessions: list[str], words: str) -> None:
    with pytest.raises(BrokenLawError, match=words):
        check_placement(view(5, a=3, b=3, c=3), plan(*sessions))
