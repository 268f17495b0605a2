"""Low priority first, then as least recently used."""

from policies.priority import PriorityFirst
from tests.policies.contexts import facts, order
from tests.policies.placement_laws import PlacementLaws


class TestPriorityFirstLaws(PlacementLaws):
    policy = PriorityFirst()


def test_priority_outranks_use_and_use_decides_among_equals() -> None:
    contexts = [
        facts("high", 1, priority=2),
        facts("new", 50),
        facts("old", 20),
        facts("low", 90, priority=0),
    ]
    assert order(PriorityFirst(), *contexts) == ["low", "old", "new", "high"]


def test_a_queued_turn_keeps_even_low_priority_from_going_first() -> None:
    contexts = [facts("queued", 1, priority=0, waiting=True), facts("idle", 2, priority=2)]
    assert order(PriorityFirst(), *contexts) == ["idle", "queued"]
