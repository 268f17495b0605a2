"""From how much of a conversation a summary is written, and what it may take."""

from hypothesis import given
from hypothesis import strategies as st

from sessiond.sessions.summary_writer import MIN_TOKENS, Reading, covered_by, reading_of
from sessiond.store.context_layout import ContextLayout, Span, SummaryRef

PREFIX = 10


def layout(*sizes, awaits_reply=False, summary=0, gone=0):
    turns, at = [], gone
    for size in sizes:
        turns.append(Span(at, at + size))
        at += size
    return ContextLayout(
        prefix_tokens=PREFIX,
        summary=SummaryRef(id="sum_1", tokens=summary) if summary else None,
        turns=tuple(turns),
        awaits_reply=awaits_reply,
        history_tokens=at,
        all_turns=len(sizes),
    )


def read(of, *, keep_last=1, wanted=50, limit=1000, overhead=20):
    return reading_of(
        of,
        covered=covered_by(of, keep_last),
        wanted_tokens=wanted,
        limit_tokens=limit,
        overhead_tokens=overhead,
    )


def test_all_is_read_where_there_is_room():
    assert read(layout(100, 200, 300)) == Reading(length=610, read_tokens=600, most_tokens=50)


def test_the_summary_that_is_there_is_read_too():
    assert read(layout(100, summary=40, gone=700)) == Reading(
        length=150, read_tokens=800, most_tokens=50
    )


def test_the_newest_turns_are_left_out_where_there_is_not():
    assert read(layout(100, 200, 300), limit=600) == Reading(
        length=310, read_tokens=300, most_tokens=50
    )


def test_what_it_shall_stand_for_is_read_in_any_case():
    assert read(layout(100, 200, 300), limit=610, keep_last=0) is None
    assert read(layout(100, 200, 300), limit=650, keep_last=0) == Reading(
        length=610, read_tokens=600, most_tokens=20
    )


def test_a_question_that_awaits_its_reply_is_not_read():
    of = layout(100, 200, 30, awaits_reply=True)
    assert read(of) == Reading(length=310, read_tokens=300, most_tokens=50)
    assert covered_by(of, 1) == 100


def test_there_may_be_nothing_to_read_or_too_little_to_write():
    assert read(layout()) is None
    assert read(layout(100), wanted=MIN_TOKENS - 1) is None


@given(
    st.lists(st.integers(1, 80), min_size=1, max_size=8),
    st.integers(0, 8),
    st.integers(1, 200),
    st.integers(1, 900),
    st.integers(0, 60),
)
def test_it_always_fits_and_always_reads_what_it_stands_for(sizes, keep, wanted, limit, overhead):
    of = layout(*sizes)
    keep = min(keep, len(sizes))
    found = read(of, keep_last=keep, wanted=wanted, limit=limit, overhead=overhead)
    if found is None:
        least = PREFIX + sum(sizes[: max(1, len(sizes) - keep)])
        assert wanted < MIN_TOKENS or limit - least - overhead < MIN_TOKENS
        return
    assert found.length + found.most_tokens + overhead <= limit
    assert MIN_TOKENS <= found.most_tokens <= wanted
    assert found.read_tokens >= covered_by(of, keep)
    assert found.length == PREFIX + found.read_tokens
