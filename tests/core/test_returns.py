"""Counts of sessions that came back, worked out by hand."""

from engine.kv.eviction import ReArrivalStats
from policies.views import TurnKind

FIRST, LATER = TurnKind(1, 0), TurnKind(2, 3)


def statistics() -> ReArrivalStats:
    return ReArrivalStats(ages_s=(10, 20, 40))


def test_a_return_is_counted_in_its_span_and_the_spans_before_as_stayed_away() -> None:
    seen = statistics()
    seen.note_idle("a", FIRST, 0)
    seen.note_arrival("a", 15)
    counts = seen.counts(15)
    assert counts.watched == {FIRST: (1, 1, 0)}
    assert counts.returned == {FIRST: (0, 1, 0)}


def test_who_never_returns_is_watched_to_the_last_span() -> None:
    seen = statistics()
    seen.note_idle("a", FIRST, 0)
    seen.note_idle("b", LATER, 25)
    counts = seen.counts(41)
    assert counts.watched == {FIRST: (1, 1, 1), LATER: (1, 0, 0)}
    assert counts.returned == {}
    seen.note_arrival("a", 50)  # too late to be seen
    assert seen.counts(100).returned == {}


def test_who_closes_is_neither_seen_to_return_nor_to_stay_away() -> None:
    seen = statistics()
    seen.note_idle("a", FIRST, 0)
    seen.forget("a")
    assert seen.counts(100).watched == {}


def test_counts_are_one_object_for_a_while() -> None:
    seen = statistics()
    first = seen.counts(0)
    seen.note_idle("a", FIRST, 0)
    assert seen.counts(29) is first
    assert seen.counts(30) is not first


def test_old_habits_fade() -> None:
    seen = statistics()
    for number in range(60_000):
        seen.note_idle("a", FIRST, number)
        seen.note_arrival("a", number)
    assert seen.counts(60_000).watched[FIRST][0] == 30_000
