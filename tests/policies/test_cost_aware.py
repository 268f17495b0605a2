"""What is worth least per block goes first: chance of a return, cost to restore, size."""

from policies.cost_aware import CostAware
from policies.views import NOTHING_SEEN, ReturnCounts, turn_kind
from tests.policies.contexts import facts, order
from tests.policies.placement_laws import PlacementLaws

COST = CostAware()


class TestCostAwareLaws(PlacementLaws):
    policy = COST


def test_sessions_with_more_turns_are_kept_longer() -> None:
    contexts = [facts("long chat", 10, turns=6), facts("first turn", 90, turns=1)]
    assert order(COST, *contexts) == ["first turn", "long chat"]


def test_whoever_has_been_silent_for_long_goes_even_after_many_turns() -> None:
    contexts = [facts("silent", 0, turns=6), facts("fresh", 4000, turns=1)]
    assert order(COST, *contexts, now_s=4010.0) == ["silent", "fresh"]


def test_what_has_been_seen_outweighs_the_prior() -> None:
    spans = len(NOTHING_SEEN.ages_s)
    first, third = turn_kind(1, 10), turn_kind(3, 10)
    seen = ReturnCounts(
        ages_s=NOTHING_SEEN.ages_s,
        watched={first: [400] * spans, third: [400] * spans},
        returned={first: [200] * spans, third: [0] * spans},
    )
    contexts = [
        facts("third", 50, turns=3, new_tokens=10),
        facts("first", 50, turns=1, new_tokens=10),
    ]
    assert order(COST, *contexts) == ["first", "third"]
    assert order(COST, *contexts, returns=seen) == ["third", "first"]


def test_kinds_of_which_little_was_seen_borrow_from_the_others() -> None:
    spans = len(NOTHING_SEEN.ages_s)
    documents, lines = turn_kind(2, 9000), turn_kind(2, 40)
    seen = ReturnCounts(
        ages_s=NOTHING_SEEN.ages_s,
        watched={documents: [300] * spans, lines: [300] * spans},
        returned={documents: [1] * spans, lines: [60] * spans},
    )
    contexts = [facts("line", 50, turns=4, new_tokens=40), facts("doc", 60, turns=4,
                                                                 new_tokens=9000)]  # fmt: skip
    assert order(COST, *contexts, returns=seen) == ["doc", "line"]


def test_what_is_stored_is_cheap_to_bring_back() -> None:
    contexts = [facts("stored", 50, stored_blocks=2), facts("only here", 10)]
    assert order(COST, *contexts, restore_s=0.01) == ["stored", "only here"]


def test_size_alone_decides_nothing() -> None:
    contexts = [facts("large", 40, blocks=50), facts("small", 48, blocks=1)]
    assert order(COST, *contexts) == ["large", "small"]


def test_hints_outrank_the_value() -> None:
    contexts = [
        facts("expected", 10, turns=1, expected_until_s=200),
        facts("chat", 90, turns=6),
        facts("low", 90, turns=6, priority=0),
    ]
    assert order(COST, *contexts) == ["low", "chat", "expected"]
