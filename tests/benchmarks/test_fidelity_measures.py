"""Statistics of what contexts predict."""

import math

import numpy as np
import pytest

from benchmarks.fidelity.measures import (
    Answer,
    Pair,
    ProbeRow,
    TurnRow,
    answer,
    by_chat,
    compare,
    distance,
    groups,
    log_probs,
    nats,
    only_one,
    perplexity,
    places,
    recall,
)

HALVES = log_probs(np.log(np.array([[0.5, 0.5, 1e-9]], dtype=np.float32)))
SKEWED = log_probs(np.log(np.array([[0.25, 0.75, 1e-9]], dtype=np.float32)))


def row(divergence=0.0, top=1.0, *, tokens=1, chat=0, trims=1, since_trim=0, nats_each=1.0):
    return TurnRow(
        chat=chat,
        language="en",
        trims=trims,
        since_trim=since_trim,
        tokens=tokens,
        pairs={"a || b": Pair(divergence=divergence, same_top=top)},
        nats={"a": nats_each},
    )


def question(a_rank, b_rank, *, kept=True, said=False, probability=0.5, language="en"):
    ranks = {"a": a_rank, "b": b_rank}
    answers = {
        name: Answer(said=said, probability=probability, rank=rank) for name, rank in ranks.items()
    }
    return ProbeRow(chat=0, language=language, trims=1, kept=kept, word="candle", answers=answers)


def test_log_probabilities_are_those_of_the_softmax():
    found = log_probs(np.array([[1.0, 2.0, 3.0], [900.0, 0.0, -900.0]], dtype=np.float32))
    assert np.exp(found).sum(axis=1) == pytest.approx([1, 1], abs=1e-6)
    assert found[0, 2] - found[0, 0] == pytest.approx(2, abs=1e-6)


def test_equal_predictions_have_no_distance():
    assert compare(HALVES, HALVES) == Pair(divergence=0, same_top=1)


def test_the_divergence_is_that_of_the_reference_from_the_other():
    expected = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    assert compare(HALVES, SKEWED).divergence == pytest.approx(expected, abs=1e-5)
    back = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert compare(SKEWED, HALVES).divergence == pytest.approx(back, abs=1e-5)


def test_same_top_counts_positions():
    reference, other = np.concatenate([SKEWED, SKEWED]), np.concatenate([SKEWED, SKEWED[:, ::-1]])
    assert compare(reference, other).same_top == 1.0  # the middle is the likeliest in both
    other = np.concatenate([SKEWED, SKEWED[:, [1, 0, 2]]])
    assert compare(reference, other).same_top == 0.5


def test_nats_are_of_the_tokens_that_follow():
    found = np.concatenate([SKEWED, SKEWED])
    expected = -(math.log(0.25) + math.log(0.75)) / 2
    assert nats(found, [0, 1]) == pytest.approx(expected, abs=1e-5)


def test_an_answer_has_its_place_in_the_vocabulary():
    found = answer(SKEWED[0], 0, said=True)
    assert (found.rank, found.said) == (1, True)
    assert found.probability == pytest.approx(0.25, abs=1e-5)
    assert answer(SKEWED[0], 1, said=False).rank == 0


def test_means_are_over_tokens_and_the_worst_is_a_reply():
    rows = [row(0.1, 0.9, tokens=1), row(0.2, 1.0, tokens=3), row(0.6, 0.5, tokens=1)]
    found = distance(rows, "a || b")
    assert (found.replies, found.tokens) == (3, 5)
    assert found.divergence.mean == pytest.approx((0.1 + 0.6 + 0.6) / 5)
    assert (found.divergence.median, found.divergence.worst) == (0.2, 0.6)
    assert (found.same_top.median, found.same_top.worst) == (0.9, 0.5)


def test_perplexity_is_over_all_tokens():
    rows = [row(nats_each=1.0, tokens=1), row(nats_each=2.0, tokens=3)]
    assert perplexity(rows, "a") == pytest.approx(math.exp(7 / 4))


def test_a_chat_is_the_mean_of_its_tokens():
    rows = [row(0.1, tokens=1), row(0.3, tokens=3, trims=4), row(0.7, chat=1)]
    first, second = by_chat(rows)
    assert (first.tokens, first.trims, second.tokens) == (4, 4, 1)
    assert first.pairs["a || b"].divergence == pytest.approx(0.25)
    assert second.pairs["a || b"].divergence == pytest.approx(0.7)


def test_groups_leave_out_what_is_empty():
    rows = [row(trims=1), row(trims=3, since_trim=1)]
    found = groups(rows)
    sizes = {name: len(some) for name, some in found.items()}
    assert sizes == {
        "all replies": 2, "in the turn that trims": 1, "in later turns": 1, "after 1 trim": 1,
        "after 2 to 4": 1, "en": 2, "whole chats": 1,
    }  # fmt: skip


def test_recall_counts_shares():
    rows = [question(0, 0, said=True), question(3, 0), question(0, 9, probability=0.0)]
    found = recall(rows, "a")
    assert found.questions == 3
    assert (found.said, found.likeliest) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert found.median_probability == 0.5
    assert math.isfinite(found.mean_nats), "an impossible word is a large number"


def test_what_one_context_alone_knows_is_counted():
    rows = [question(0, 1), question(0, 2), question(5, 0), question(0, 0), question(7, 7)]
    assert only_one(rows, "a", "b") == (2, 1)


def test_questions_are_parted_by_where_the_answer_was_told():
    rows = [question(0, 0), question(0, 0, language="zh"), question(0, 0, kept=False)]
    assert {name: len(some) for name, some in places(rows).items()} == {
        "kept text": 2, "kept text, en": 1, "kept text, zh": 1, "text just dropped": 1,
    }  # fmt: skip
    assert "text just dropped" not in places(rows[:2])
