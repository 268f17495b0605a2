"""What is guessed from a session's own ids, against a plain search."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.core.draft_budget import NgramProposer


def plain_guess(ids: list[int]) -> int | None:
    """Where the id stands that followed the last three, or better five, the last time."""
    found = None
    for length in (3, 5):
        wanted = ids[-length:]
        ends = [end for end in range(length, len(ids)) if ids[end - length : end] == wanted]
        if len(wanted) == length and ends and (length == 3 or found is not None):
            found = ends[-1]
    return found


# Bytes of some of these side by side look like others of them.
IDS = st.sampled_from([0, 1, 256, 257, 65_536, 65_793, 16_777_216, 16_843_009])


@given(st.lists(IDS, max_size=40))
def test_the_draft_is_what_followed_the_same_tokens_the_last_time(ids: list[int]) -> None:
    place = plain_guess(ids)
    assert NgramProposer(ids).tokens(1) == ([] if place is None else [ids[place]])


@given(st.lists(IDS, max_size=30), st.lists(IDS, max_size=30))
def test_a_place_is_followed_while_it_guesses_right(first: list[int], then: list[int]) -> None:
    draft, ids = NgramProposer(first), list(first)
    place = plain_guess(ids)
    for token in then:
        expected = None if place is None else ids[place] == token
        assert draft.push(token) is expected
        ids.append(token)
        place = place + 1 if place is not None and expected else plain_guess(ids)
        assert draft.exists is (place is not None)


@pytest.mark.parametrize(("count", "expected"), [(0, []), (2, [4, 1]), (7, [4, 1, 2, 3, 4, 1, 2])])
def test_a_draft_goes_on_in_circles(count: int, expected: list[int]) -> None:
    assert NgramProposer([1, 2, 3, 4, 1, 2, 3]).tokens(count) == expected


@pytest.mark.parametrize("ids", [[], [1], [1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 9, 1, 2]])
def test_nothing_is_drafted_where_too_little_repeats(ids: list[int]) -> None:
    assert NgramProposer(ids).tokens(4) == []
    assert not NgramProposer(ids).exists


def test_a_run_counts_accepted_drafts_and_ends_with_a_rejected_one() -> None:
    draft = NgramProposer([1, 2, 3, 4, 5, 1, 2, 3])
    runs = []
    for token in (4, 5, 9):
        draft.push(token)
        runs.append(draft.run)
    assert runs == [1, 2, 0]
