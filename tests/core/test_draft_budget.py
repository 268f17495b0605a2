"""How many guesses a step checks."""

import pytest

from engine.core.draft_budget import DraftCandidate, TurnDrafts, draft_counts
from engine.core.speculation import BatchCostCorrection
from engine.core.step_cost import StepLoad, StepPrice

# a small batch waits for weights, each row more adds a tenth of that
PRICE = StepPrice(2e-3, 2e-4, 0.0, 0.0)


def plain(rows: int) -> float:
    return 1.0


def load(rows: int) -> StepLoad:
    return StepLoad(rows=rows, kv_tokens=100 * rows, pairs=100 * rows)


def counts(acceptance: list[list[float]], rows: int, *, most: int = 100, factor=plain) -> list[int]:
    return draft_counts(
        [DraftCandidate(one, 100) for one in acceptance], load(rows), PRICE, factor, most
    )


def test_likely_drafts_are_checked_where_a_step_is_mostly_weights() -> None:
    assert counts([[0.9, 0.8, 0.7]], 1) == [3]


def test_unlikely_drafts_are_not() -> None:
    assert counts([[0.05, 0.01]], 1) == [0]


@pytest.mark.parametrize(("chance", "checked"), [(0.15, 0), (0.21, 1)])
def test_a_draft_must_promise_a_tenth_more_than_it_costs(chance: float, checked: int) -> None:
    assert counts([[chance]], 1) == [checked]


@pytest.mark.parametrize(("context", "checked"), [(100, 1), (10_000, 0)])
def test_a_draft_costs_reading_its_context(context: int, checked: int) -> None:
    price = StepPrice(2e-3, 2e-4, 0.0, 1e-6)
    assert draft_counts([DraftCandidate([0.9], context)], load(1), price, plain, 9) == [checked]


def test_no_draft_is_worth_a_row_where_rows_are_all_that_costs() -> None:
    assert counts([[0.7, 0.5]] * 64, 512) == [0] * 64


def test_a_larger_batch_checks_fewer() -> None:
    acceptance = [[0.8**n for n in range(1, 9)]]
    per_turn = [max(counts(acceptance * batch, batch)) for batch in (1, 4, 16, 64)]
    assert per_turn == sorted(per_turn, reverse=True)
    assert per_turn[0] > per_turn[-1]


def test_the_likeliest_come_first_and_no_more_than_the_step_has_room_for() -> None:
    assert counts([[0.5, 0.2], [0.9, 0.8], []], 3, most=2) == [0, 2, 0]


@pytest.mark.parametrize("most", [0, -3])
def test_none_is_checked_where_there_is_no_room(most: int) -> None:
    assert counts([[0.9]], 1, most=most) == [0]


def test_a_number_of_rows_that_suits_the_kernels_is_preferred() -> None:
    factors = BatchCostCorrection()
    for rows, took in ((1, 1.0), (2, 1.0), (3, 1.6), (4, 1.0), (5, 1.6), (6, 1.6)):
        factors.note(rows, took, 1.0)
    assert counts([[0.6, 0.4, 0.3, 0.2, 0.1]], 1, factor=factors.of) == [3]


def test_a_row_count_is_tried_again_when_what_it_told_is_long_ago() -> None:
    factors = BatchCostCorrection()
    factors.note(3, 2.0, 1.0)
    assert factors.of(3) == 2.0
    for _ in range(2000):
        factors.note(1, 1.0, 1.0)
    assert factors.of(3) < 1.01
    assert factors.of(4) == 1.0


def test_a_disturbed_step_tells_little_of_its_row_count() -> None:
    factors = BatchCostCorrection()
    for took in (1.0, 1.0, 50.0, 1.1):
        factors.note(2, took, 1.0)
    assert factors.of(2) < 1.1


def test_chances_follow_what_came_true_whether_checked_or_not() -> None:
    turn_drafts = TurnDrafts([1, 2, 3, 4] * 4)
    (before,) = turn_drafts.acceptance(1)
    turn_drafts.learn([1, 2, 3, 4] * 5)
    (after,) = turn_drafts.acceptance(1)
    assert after > before
    assert after > 0.9


def test_a_text_that_only_seems_to_repeat_loses_its_chances() -> None:
    turn_drafts = TurnDrafts([1, 2, 3, 0])
    for unlike in range(100, 140):
        turn_drafts.learn([1, 2, 3, unlike])
    turn_drafts.learn([1, 2, 3])
    (chance,) = turn_drafts.acceptance(1)
    assert chance < 0.05
