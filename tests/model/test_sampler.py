"""Draws follow the distribution, keep its cuts, and depend on seed, index and logits only."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from engine.ipc.messages import Sampling
from engine.kv.step import NOT_FINITE, OneSample
from engine.kv.token_counts import TokenCounts
from engine.model.sampler import adjusted, candidates, sample, uniform

LOGITS = st.lists(
    st.floats(-20, 20, width=32) | st.sampled_from([-1.0, 0.0, 3.5]), min_size=1, max_size=30
)
SETTINGS = st.builds(
    Sampling,
    temperature=st.floats(0.05, 5),
    top_k=st.integers(0, 12),
    top_p=st.floats(0, 1),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 0.9, 1.0]),
    seed=st.integers(-(2**63), 2**64),
)


def at(index=0, **sampling):
    return OneSample(sampling=Sampling(**sampling), output_index=index)


def test_greedy_takes_the_highest_and_the_lower_id_of_equals():
    logits = torch.tensor([[0.0, 5.0, 5.0, 1.0], [9.0, 1.0, 2.0, 9.0], [-3.0, -4.0, -3.0, -5.0]])
    assert sample(logits, [at(temperature=0.0)] * 3) == [1, 0, 0]


def reference(logits, sampling):
    """Candidates and their probabilities, one token at a time."""
    scores = [value / sampling.temperature for value in logits]
    weights = [np.exp(score - max(scores)) for score in scores]
    order = sorted(range(len(logits)), key=lambda token: (-weights[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        total = sum(weights[token] for token in order)
        sums = list(itertools.accumulate(weights[token] for token in order))
        enough = next((n for n, have in enumerate(sums, 1) if have >= sampling.top_p * total), None)
        # within rounding of the bound either count is right
        exact = not any(abs(have / total - sampling.top_p) < 1e-9 for have in sums)
        order = order[:enough]
    else:
        exact = True
    return [token for token in order if weights[token] >= sampling.min_p], exact


@given(LOGITS, SETTINGS)
def test_candidates_are_those_of_the_definition(logits, sampling):
    expected, exact = reference(logits, sampling)
    ids, weights = candidates(np.array(logits), sampling)
    assert len(ids) == len(weights) > 0
    assert (weights > 0).all()
    if exact:
        assert set(ids.tolist()) == set(expected)


@given(st.lists(LOGITS, min_size=1, max_size=4), SETTINGS, st.integers(0, 1000))
def test_company_changes_no_draw(rows, sampling, index):
    width = max(map(len, rows))
    logits = torch.tensor([row + [-30.0] * (width - len(row)) for row in rows])
    wanted = [OneSample(sampling=sampling, output_index=index + row) for row in range(len(rows))]
    together = sample(logits, wanted)
    assert together == [sample(logits[row : row + 1], [wanted[row]])[0] for row in range(len(rows))]
    assert together == sample(logits, wanted)


@given(LOGITS, SETTINGS)
def test_draw_is_a_candidate(logits, sampling):
    (token,) = sample(torch.tensor([logits]), [OneSample(sampling=sampling, output_index=3)])
    assert token in candidates(np.array(logits, dtype=np.float32).astype(float), sampling)[0]


def test_top_k_of_one_is_greedy():
    logits = torch.tensor([[1.0, 4.0, 4.0, 2.0]])
    for seed in range(20):
        assert sample(logits, [at(temperature=2.0, top_k=1, seed=seed)]) == [1]


def test_tiny_temperature_is_greedy():
    logits = torch.tensor([[1.0, 4.0, 3.999, 2.0]])
    assert sample(logits, [at(temperature=1e-300)]) == [1]


def chi_square(counts, probabilities):
    expected = np.array(probabilities) * sum(counts)
    return float((((np.array(counts) - expected) ** 2) / expected).sum())


@pytest.mark.parametrize("by", ["index", "seed"])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_draws_follow_the_distribution(by, top_p):
    probabilities = np.array([0.4, 0.25, 0.15, 0.12, 0.05, 0.03])
    logits = torch.tensor(np.log(probabilities))[None]
    counts = np.zeros(6)
    for number in range(3000):
        index, seed = (number, 11) if by == "index" else (5, number)
        counts[sample(logits, [at(index, temperature=1.0, top_p=top_p, seed=seed)])[0]] += 1
    kept = 6 if top_p == 1 else 4
    assert counts[kept:].sum() == 0
    shares = probabilities[:kept] / probabilities[:kept].sum()
    # 99.9 % quantiles of chi-square with 5 and 3 degrees of freedom
    assert chi_square(counts[:kept], shares) < {6: 20.5, 4: 16.3}[kept]


def test_neighbouring_draws_are_independent():
    pairs = np.zeros((4, 4))
    for seed, index in itertools.product(range(40), range(100)):
        pair = uniform(seed, index), uniform(seed, index + 1)
        pairs[int(pair[0] * 4), int(pair[1] * 4)] += 1
    assert chi_square(pairs.ravel(), np.full(16, 1 / 16)) < 37.7  # 99.9 %, 15 degrees


def test_uniform_is_fixed_for_all_time():
    """Stored seeds must mean the same after an upgrade of numpy."""
    assert uniform(0, 0) == 0.011546754286331562
    assert uniform(-1, 7) == uniform(2**128 - 1, 7)
    assert 0 <= min(uniform(1, n) for n in range(1000)) < 0.01


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_told_for_their_row_only(bad, temperature):
    logits = torch.zeros(3, 5)
    logits[1, 2] = bad
    first, second, third = sample(logits, [at(temperature=temperature)] * 3)
    assert second == NOT_FINITE
    assert first in range(5)
    assert third in range(5)


class Copies(TorchFunctionMode):
    """Counts copies to the host: on a card each waits until all that was ordered is done."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        del types
        self.count += func.__name__ in {"cpu", "tolist", "item"}
        return func(*args, **(kwargs or {}))


def test_as_many_rows_as_there_are_are_copied_to_the_host_at_once():
    logits = torch.randn(9, 50).to(torch.bfloat16)
    wanted = [at(temperature=0.5 * (row % 3), seed=row) for row in range(9)]
    expected = [sample(logits[row : row + 1], [one])[0] for row, one in enumerate(wanted)]
    with Copies() as copies:
        assert sample(logits, wanted) == expected
    assert copies.count == 3


def penalised(logits, context, reply=(), drafts=(), uncounted=(), **sampling):
    counts = TokenCounts(context, uncounted=uncounted)
    for token in reply:
        counts.add(token)
    one = OneSample(
        sampling=Sampling(temperature=0.0, **sampling),
        output_index=0,
        counts=counts,
        after=drafts,
    )
    return adjusted(np.array(logits, float), one).tolist()


def test_a_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_not():
    logits = [2.0, -2.0, 2.0, -2.0]
    assert penalised(logits, [0, 1, 0], repetition_penalty=2.0) == [1.0, -4.0, 2.0, -2.0]
    assert penalised(logits, [0], reply=[3], repetition_penalty=2.0) == [1.0, -2.0, 2.0, -4.0]


def test_frequency_and_presence_count_the_reply_only():
    logits = [1.0] * 4
    found = penalised(
        logits, [0, 0, 1], reply=[1, 2, 2], frequency_penalty=0.5, presence_penalty=0.25
    )
    assert found == [1.0, 0.25, -0.25, 1.0]
    assert penalised(logits, [], reply=[1], frequency_penalty=-2.0) == [1.0, 3.0, 1.0, 1.0]


def test_what_ends_a_reply_has_no_penalty():
    found = penalised([1.0, 1.0], [0, 1], uncounted=[1], repetition_penalty=2.0)
    assert found == [0.5, 1.0]


def test_bias_is_added_after_penalties():
    found = penalised([2.0, 1.0], [0], repetition_penalty=2.0, logit_bias=((0, 3.0), (1, -100.0)))
    assert found == [4.0, -99.0]


@given(
    st.lists(st.integers(0, 19), max_size=40),
    st.lists(st.integers(0, 19), max_size=40),
    st.lists(st.integers(0, 19), max_size=6),
)
def test_drafts_count_as_if_the_reply_had_them(context, reply, drafts):
    logits = np.linspace(-3, 3, 20).tolist()
    settings = {"repetition_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1}
    kept = penalised(logits, context, [*reply, *drafts], uncounted=[19], **settings)
    assert penalised(logits, context, reply, drafts, uncounted=[19], **settings) == kept


def test_greedy_takes_the_highest_after_penalties():
    counts = TokenCounts([1])
    one = OneSample(
        sampling=Sampling(temperature=0.0, repetition_penalty=1.5), output_index=0, counts=counts
    )
    assert sample(torch.tensor([[4.0, 5.0, 1.0]]), [one]) == [0]
