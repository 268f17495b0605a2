"""The laws on torch float32 with the default model: every token is the one that a dense forward
over the same ids gives, within the rounding of float32.

Sums in another order move a logit by some 1e-4, so a reply may leave another at a near-tie. What
may not happen is a token that the dense forward, over the very ids before it, would not give.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from engine.ipc.messages import Sampling
from engine.model.sampler import candidates, uniform
from engine.text.tokenizer import load_tokenizer
from tests.harness.loop import Engine
from tests.model.support import load, prefill_logits
from tests.model.test_default_model import MODEL

pytestmark = [pytest.mark.second, pytest.mark.real_model]

LOGIT_TOLERANCE = 1e-3
SHARE_TOLERANCE = 2e-3  # of the distribution, at a logit tolerance of 1e-3
OUTPUT = 20
SAMPLINGS = [
    pytest.param(Sampling(temperature=0), id="greedy"),
    pytest.param(Sampling(temperature=0.8, seed=7), id="seeded"),
]
TEXTS = [
    "The capital of France is Paris. The capital of Italy is",
    "北京是中国的首都，也是一座历史悠久的城市。上海是",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time there was a small lighthouse keeper who never slept, because",
]


@pytest.fixture(scope="module")
def model():
    return load(MODEL)


@pytest.fixture(scope="module")
def dense(model):
    return model.runner(64)


@pytest.fixture(scope="module")
def prompts():
    tokenizer = load_tokenizer(MODEL)
    return [tokenizer.encode(text) for text in TEXTS]


def engine(model, **settings):
    return Engine(runner=lambda num_blocks, _size: model.runner(num_blocks), **settings)


def submit(loop: Engine, session: str, ids: list[int], sampling: Sampling):
    return loop.submit(
        session, ids, sampling=sampling, stop_ids=[], close_ids=[], max_output_tokens=OUTPUT
    )


def turn(loop: Engine, session: str, ids: list[int], sampling: Sampling) -> list[int]:
    submitted = submit(loop, session, ids, sampling)
    loop.run()
    return loop.kept(submitted)


def assert_dense_gives(dense, ids: list[int], reply: Sequence[int], sampling: Sampling) -> None:
    logits = prefill_logits(dense, [*ids, *reply], range(64)).double().numpy()
    assert len(reply) == OUTPUT
    for index, token in enumerate(reply):
        row = logits[len(ids) - 1 + index]
        if sampling.temperature == 0:
            assert row.max() - row[token] <= 2 * LOGIT_TOLERANCE, f"token {index}"
            continue
        drawn_ids, weights = candidates(row, sampling)
        ends = np.concatenate([[0.0], np.cumsum(weights)]) / weights.sum()
        (place,) = np.flatnonzero(drawn_ids == token)
        at = uniform(sampling.seed, index)
        assert ends[place] - SHARE_TOLERANCE <= at <= ends[place + 1] + SHARE_TOLERANCE


@pytest.mark.parametrize("sampling", SAMPLINGS)
class TestDefaultModelLaws:
    @pytest.mark.parametrize("chunk", [7, 512])
    def test_paged_is_dense_for_any_chunk_size(self, model, dense, prompts, sampling, chunk):
        loop = engine(model, max_num_batched_tokens=chunk, max_num_seqs=1)
        loop.open("a")
        ids: list[int] = []
        for prompt in prompts[:3]:
            reply = turn(loop, "a", prompt, sampling)
            assert_dense_gives(dense, [*ids, *prompt], reply, sampling)
            ids += [*prompt, *reply]
        loop.check()

    def test_batched_is_alone(self, model, dense, prompts, sampling):
        loop = engine(model, max_num_batched_tokens=16, max_num_seqs=4)
        turns = []
        for number, prompt in enumerate(prompts):
            loop.open(f"s{number}")
            turns.append(submit(loop, f"s{number}", prompt, sampling))
            loop.step()
        loop.run()
        for one, prompt in zip(turns, prompts, strict=True):
            assert_dense_gives(dense, prompt, loop.kept(one), sampling)
        loop.check()

    def test_forked_is_copied(self, model, dense, prompts, sampling):
        loop = engine(model)
        loop.open("a")
        ids = [*prompts[0], *turn(loop, "a", prompts[0], sampling)]
        for length in (5, 16, 20, len(ids)):
            loop.fork(f"f{length}", "a", length)
            reply = turn(loop, f"f{length}", prompts[1], sampling)
            assert_dense_gives(dense, [*ids[:length], *prompts[1]], reply, sampling)
        loop.check()

    def test_preempted_is_uninterrupted(self, model, dense, prompts, sampling):
        loop = engine(model, num_blocks=6)
        turns = []
        for number, prompt in enumerate(prompts):
            loop.open(f"s{number}")
            turns.append(submit(loop, f"s{number}", prompt, sampling))
        loop.run()
        assert loop.stats().preemptions_total > 0
        for one, prompt in zip(turns, prompts, strict=True):
            assert_dense_gives(dense, prompt, loop.kept(one), sampling)
        loop.check()

    def test_restarted_is_never_stopped(self, model, dense, prompts, sampling):
        first = engine(model)
        first.open("a")
        ids = [*prompts[0], *turn(first, "a", prompts[0], sampling)]
        again = engine(model)
        again.open("a", ids)
        reply = turn(again, "a", prompts[1], sampling)
        assert_dense_gives(dense, [*ids, *prompts[1]], reply, sampling)
        again.check()


def test_the_dense_check_notices_a_token_of_another_context(model, dense, prompts):
    """Guards the tolerances: replies to one prompt must not pass for replies to another."""
    loop = engine(model)
    loop.open("a")
    for sampling in (Sampling(temperature=0), Sampling(temperature=0.8, seed=7)):
        reply = turn(loop, "a", prompts[0], sampling)
        loop.truncate("a", 0)
        for prompt, other in pairwise(prompts):
            if prompt is prompts[0]:
                with pytest.raises((AssertionError, ValueError)):
                    assert_dense_gives(dense, other, reply, sampling)
