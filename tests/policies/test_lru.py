"""Least recently used first; who waits for a turn after who does not."""

from policies.lru import LeastRecentlyUsed
from policies.views import ContextFacts, PlacementView
from tests.policies.placement_laws import PlacementLaws


def facts(session: str, last_used_s: float, *, blocks: int = 2, waiting: bool = False):
    return ContextFacts(session=session, blocks=blocks, last_used_s=last_used_s, waiting=waiting)


def released(needed: int, *contexts: ContextFacts) -> list[str]:
    view = PlacementView(now_s=100.0, needed_blocks=needed, contexts=contexts)
    return [action.session for action in LeastRecentlyUsed().plan(view).actions]


class TestLeastRecentlyUsedLaws(PlacementLaws):
    policy = LeastRecentlyUsed()


def test_the_oldest_use_goes_first_and_no_more_than_is_needed() -> None:
    contexts = [facts("a", 30), facts("b", 10), facts("c", 20)]
    assert released(1, *contexts) == ["b"]
    assert released(3, *contexts) == ["b", "c"]
    assert released(99, *contexts) == ["b", "c", "a"]


def test_who_waits_for_a_turn_goes_after_who_does_not() -> None:
    assert released(3, facts("queued", 1, waiting=True), facts("idle", 50)) == ["idle", "queued"]


def test_who_holds_nothing_is_left_alone() -> None:
    assert released(2, facts("empty", 1, blocks=0), facts("full", 2)) == ["full"]
