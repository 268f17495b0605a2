"""The context policies that are built in, each held to the laws, and what is its own."""

import pytest

from policies.last_turns import LastTurns
from policies.plan import KeepAll, KeepTurns, Summarize
from policies.registry import KeepAllPolicy
from policies.sliding_window import SlidingWindow
from policies.summarize import Compaction
from policies.token_budget import TokenBudget
from policies.toolkit import ParameterError
from policies.views import ConversationView
from tests.policies.context_laws import ContextLaws


def view(*turns: int, **sizes: int) -> ConversationView:
    sizes = {"prompt": 10, "output": 10, "limit": 1000, "system": 20, "summary": 0} | sizes
    return ConversationView(turns=turns, **{f"{name}_tokens": size for name, size in sizes.items()})


class TestKeepAllLaws(ContextLaws):
    policy = KeepAllPolicy()
    trims = False


class TestSlidingWindowLaws(ContextLaws):
    policy = SlidingWindow()


class TestLastTurnsLaws(ContextLaws):
    policy = LastTurns(turns=30)


class TestLastTurnsWithinTokensLaws(ContextLaws):
    policy = LastTurns(turns=20, max_tokens=800)


class TestTokenBudgetLaws(ContextLaws):
    policy = TokenBudget()


class TestCompactionLaws(ContextLaws):
    policy = Compaction()


def test_a_window_is_trimmed_to_its_margin() -> None:
    full = view(*[100] * 10)
    assert SlidingWindow().plan(full) == KeepTurns(turns=(3, 4, 5, 6, 7, 8, 9))
    assert SlidingWindow(trim_to=1).plan(full) == KeepTurns(turns=tuple(range(1, 10)))
    assert SlidingWindow().plan(view(*[100] * 9)) == KeepAll()


def test_a_session_may_be_held_to_fewer_tokens_than_there_is_room_for() -> None:
    assert SlidingWindow(max_tokens=300).plan(view(*[100] * 4)) == KeepTurns(turns=(2, 3))


def test_room_for_the_whole_reply_is_made() -> None:
    """llama.cpp#25026, #3969: window 1,024, prompt 900, 512 to come."""
    history = view(*[100] * 8, prompt=80, output=512, limit=1024)
    assert SlidingWindow().plan(history) == KeepTurns(turns=(6, 7))


def test_a_new_turn_that_takes_more_than_the_margin_may_fill_the_window() -> None:
    assert SlidingWindow().plan(view(50, 50, prompt=900)) == KeepTurns(turns=(1,))


def test_a_summary_stays_in_front_of_the_window_as_long_as_it_fits() -> None:
    assert SlidingWindow().plan(view(*[100] * 10, summary=50)) == KeepTurns(
        turns=(3, 4, 5, 6, 7, 8, 9)
    )
    assert SlidingWindow().plan(view(50, prompt=950, summary=50)) == KeepTurns(
        turns=(), summary=False
    )


def test_last_turns_counts_turns_whatever_they_take() -> None:
    assert LastTurns(turns=5).plan(view(*[1] * 5)) == KeepAll()
    assert LastTurns(turns=5).plan(view(*[1] * 6)) == KeepTurns(turns=(2, 3, 4, 5), summary=False)
    assert LastTurns(turns=5, trim_to=1).plan(view(*[1] * 6)).turns == (1, 2, 3, 4, 5)
    assert LastTurns(turns=1).plan(view(1, 1)).turns == (1,), "never fewer than one"
    assert LastTurns(turns=0).plan(view(1)) == KeepTurns(turns=(), summary=False)


def test_last_turns_that_do_not_fit_go_too() -> None:
    assert LastTurns(turns=5).plan(view(500, 500, 300)).turns == (2,)


@pytest.mark.parametrize(
    ("turns", "kept"),
    [
        ([1] * 20, None),
        ([100] * 19, None),  # 1,940 with prompt, reply and system prompt
        ([1] * 21, range(5, 21)),  # too many: four fifths of 20 are left
        ([100] * 20, range(5, 20)),  # too long: 15 * 100 + 40 fit four fifths of 2,000
        ([100] * 30, range(15, 30)),
        ([50] * 30, range(14, 30)),  # both, and turns are the narrower limit
        ([1] * 10 + [1990], ()),
    ],
)
def test_m08_twenty_turns_and_at_most_two_thousand_tokens(
    turns: list[int], kept: range | tuple[()] | None
) -> None:
    plan = LastTurns(turns=20, max_tokens=2000).plan(view(*turns, limit=8000))
    if kept is None:
        assert plan == KeepAll()
    else:
        assert list(plan.turns) == list(kept)


def test_m08_the_servers_limit_holds_below_the_policys() -> None:
    policy = LastTurns(turns=20, max_tokens=2000)
    assert policy.plan(view(*[100] * 10)) == LastTurns(turns=20).plan(view(*[100] * 10))


def test_over_the_budget_the_conversation_starts_anew() -> None:
    assert TokenBudget(max_tokens=200).plan(view(100, 60)) == KeepAll()
    assert TokenBudget(max_tokens=200).plan(view(100, 61)) == KeepTurns(turns=(), summary=False)


def test_a_summary_is_asked_for_before_the_window_is_full() -> None:
    policy = Compaction(compact_threshold=500, keep_turns=2, summary_tokens=100)
    assert policy.plan(view(*[100] * 4)) == KeepAll()
    assert policy.plan(view(*[100] * 5)) == Summarize(
        keep_last=2, summary_tokens=100, fallback=KeepAll(), threshold=500
    )
    full = policy.plan(view(*[100] * 10))
    assert isinstance(full, Summarize)
    assert full.fallback == SlidingWindow().plan(view(*[100] * 10))


def test_a_summary_that_would_save_nothing_is_not_asked_for() -> None:
    policy = Compaction(compact_threshold=300, keep_turns=2, summary_tokens=100)
    assert policy.plan(view(60, 200, 100)) == KeepAll()
    assert policy.plan(view(150, 150, summary=90)) == KeepAll()


def test_fewer_turns_than_asked_are_kept_beside_the_summary_if_they_are_long() -> None:
    plan = Compaction(keep_turns=3, summary_tokens=100).plan(view(500, 400, 400))
    assert isinstance(plan, Summarize)
    assert plan.keep_last == 2


@pytest.mark.parametrize(
    ("policy", "parameters", "words"),
    [
        (SlidingWindow, {"max_tokens": 0}, r"max_tokens must be a whole number of 1 .*got 0\)"),
        (SlidingWindow, {"trim_to": 1.5}, r"trim_to must be a number above 0, up to 1 \(got 1.5\)"),
        (SlidingWindow, {"trim_to": "much"}, r"trim_to must be .*\(got 'much'\)"),
        (LastTurns, {"turns": -1}, r"turns must be a whole number of 0 .*got -1\)"),
        (LastTurns, {"turns": True}, r"turns must be .*\(got True\)"),
        (LastTurns, {"max_tokens": 0}, r"max_tokens must be .*\(got 0\)"),
        (TokenBudget, {"max_tokens": 2.5}, r"max_tokens must be .*\(got 2.5\)"),
        (Compaction, {"compact_threshold": 0}, r"compact_threshold must be .*\(got 0\)"),
        (Compaction, {"summary_tokens": 1}, r"summary_tokens must be .*\(got 1\)"),
    ],
)
def test_a_parameter_that_can_not_be_is_named(
    policy: type, parameters: dict[str, object], words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        policy(**parameters)
