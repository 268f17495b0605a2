"""Rates of return against values worked out by hand."""

import pytest

from policies.cost_aware import ReArrivalRates
from policies.views import NOTHING_SEEN, ReturnCounts, TurnKind, turn_kind


def test_kinds_go_by_turns_and_by_powers_of_two_of_new_tokens() -> None:
    assert turn_kind(1, 0) == (1, 0)
    assert turn_kind(0, 127) == (1, 0)
    assert turn_kind(3, 128) == (3, 1)
    assert turn_kind(99, 8191) == (5, 6)
    assert turn_kind(5, 10**6) == (5, 7)


def test_the_rate_is_the_best_ratio_of_returns_to_time_held() -> None:
    kind = TurnKind(1, 0)
    seen = ReturnCounts(  # so many that the prior hardly counts
        ages_s=(10.0, 20.0, 40.0),
        watched={kind: (10**9, 10**9, 10**9)},
        returned={kind: (0, 5 * 10**8, 0)},
    )
    rates = ReArrivalRates(seen)
    # From the first span: held 10 s for nothing, then 7.5 s on average for a return in two.
    assert rates.per_second(kind, 0) == pytest.approx(0.5 / 17.5, rel=1e-3)
    assert rates.per_second(kind, 10) == pytest.approx(0.5 / 7.5, rel=1e-3)
    assert rates.per_second(kind, 20) == pytest.approx(0, abs=1e-6)
    assert rates.per_second(kind, 40) == 0


def test_without_counts_half_of_those_who_return_do_so_within_the_median() -> None:
    rates = ReArrivalRates(NOTHING_SEEN)
    kind = TurnKind(1, 0)
    early, late = rates.per_second(kind, 60), rates.per_second(kind, 1000)
    assert early > 5 * late > 0
    assert rates.per_second(TurnKind(5, 0), 60) > 2 * early
