"""Who was to be back longest ago goes first."""

from policies.ttl import TimeToLive
from tests.policies.contexts import facts, order
from tests.policies.placement_laws import PlacementLaws

TTL = TimeToLive(ttl_s=50)


class TestTimeToLiveLaws(PlacementLaws):
    policy = TTL


def test_a_hint_takes_the_place_of_the_usual_time() -> None:
    contexts = [
        facts("usual", 30),
        facts("long", 10, expected_until_s=500),
        facts("short", 70, expected_until_s=75),
    ]
    assert order(TTL, *contexts) == ["short", "usual", "long"]


def test_without_hints_it_is_least_recently_used() -> None:
    assert order(TTL, facts("a", 30), facts("b", 10), facts("c", 20)) == ["b", "c", "a"]
