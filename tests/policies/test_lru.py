"""Least recently used first; who waits for a turn after who does not."""

from policies.lru import LeastRecentlyUsed
from tests.policies.contexts import facts, order
from tests.policies.placement_laws import PlacementLaws

LRU = LeastRecentlyUsed()


class TestLeastRecentlyUsedLaws(PlacementLaws):
    policy = LRU


def test_the_oldest_use_goes_first_and_no_more_than_is_needed() -> None:
    contexts = [facts("a", 30), facts("b", 10), facts("c", 20)]
    assert order(LRU, *contexts, needed=1) == ["b"]
    assert order(LRU, *contexts, needed=3) == ["b", "c"]
    assert order(LRU, *contexts) == ["b", "c", "a"]


def test_who_waits_for_a_turn_goes_after_who_does_not() -> None:
    assert order(LRU, facts("queued", 1, waiting=True), facts("idle", 50)) == ["idle", "queued"]


def test_who_holds_nothing_is_left_alone() -> None:
    assert order(LRU, facts("empty", 1, blocks=0), facts("full", 2)) == ["full"]


def test_who_holds_only_what_others_hold_goes_last_and_counts_for_nothing() -> None:
    shared = facts("shared", 1, shared_blocks=2)
    assert order(LRU, shared, facts("own", 2), needed=2) == ["own"]
    assert order(LRU, shared, facts("own", 2), needed=3) == ["own", "shared"]


def test_who_is_expected_back_goes_after_others_until_the_time_has_passed() -> None:
    pinned = facts("a", 0, expected_until_s=60)
    other = facts("b", 10)
    assert order(LRU, pinned, other, now_s=59.0) == ["b", "a"]
    assert order(LRU, pinned, other, now_s=61.0) == ["a", "b"]


def test_kv_goes_to_a_tier_where_bringing_it_back_is_cheaper_than_computing_it() -> None:
    tier = {"swaps": True, "recompute_s": 1.0}
    assert order(LRU, facts("a"), restore_s=0.1, **tier) == ["a to a tier"]
    assert order(LRU, facts("a"), restore_s=1.5, **tier) == ["a"]
