"""On the law backend no cut of the work changes a bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.ids import BlockId
from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SequenceStep
from tests.laws.law_model import fixed_exp, fixed_sum, law_model, law_runner
from tests.model.support import draw, greedy_reply, prefill_logits, random_ids, step, tiny_model

IDS = random_ids(90)


@pytest.fixture(scope="module")
def model():
    return law_model()


@pytest.fixture(scope="module")
def expected(model):
    """Logits of every token, computed alone and at once."""
    return prefill_logits(model.runner(6), IDS, range(6))


@pytest.mark.parametrize("chunk", [1, 5, 16, 31, 64])
def test_chunks_change_no_bit(model, expected, chunk):
    assert torch.equal(prefill_logits(model.runner(6), IDS, range(6), chunk), expected)


def test_where_kv_lies_changes_no_bit(model, expected):
    assert torch.equal(prefill_logits(model.runner(40), IDS, [31, 2, 17, 0, 39, 8], 16), expected)


@given(cuts=st.lists(st.integers(1, 40), min_size=2, max_size=6), data=st.data())
@settings(max_examples=25, deadline=None)
def test_company_in_the_batch_changes_no_bit(model, expected, cuts, data):
    """Each sequence of a batch ends elsewhere in the ids and starts its chunk elsewhere."""
    runner = model.runner(6 * len(cuts))
    batch = []
    for place, length in enumerate(cuts):
        blocks = range(6 * place, 6 * place + 6)
        start = data.draw(st.integers(0, length - 1))
        if start:
            runner.execute([step(IDS[:start], 0, blocks)])
        batch.append(step(IDS[:length], start, blocks, sample=draw()))
    got = runner.logits(batch)
    assert torch.equal(got, expected[[length - 1 for length in cuts]])


def test_copied_blocks_are_as_good_as_their_source(model, expected):
    runner = model.runner(12)
    prefill_logits(runner, IDS[:60], range(6))
    for block in range(4):
        runner.copy_block(BlockId(block), BlockId(block + 6))
    # the source goes on differently: the copy must not notice
    runner.execute([step([*IDS[:60], 1, 2, 3], 60, range(6))])
    tail = runner.logits([step(IDS, 60, range(6, 12))], every_token=True)
    assert torch.equal(tail, expected[60:])


def test_a_shared_prefix_serves_two_continuations(model, expected):
    runner = model.runner(12)
    prefill_logits(runner, IDS[:32], range(2))
    other = [*IDS[:32], *random_ids(30, seed=9)]
    both = [
        step(other, 32, [0, 1, 7, 8], sample=draw()),
        step(IDS, 32, [0, 1, 2, 3, 4, 5], sample=draw()),
    ]
    assert torch.equal(runner.logits(both)[1], expected[-1])


def test_seeded_sampling_is_the_same_alone_and_recomputed(model):
    sampling = Sampling(temperature=0.9, top_p=0.95, seed=7)
    whole = greedy_reply(model.runner(8), IDS[:20], range(8), 40, sampling)
    half = greedy_reply(model.runner(8), IDS[:20], range(8), 15, sampling)
    assert whole[:15] == half
    # preempted: everything is computed anew from the ids
    runner, ids = model.runner(8), IDS[:20] + half
    (token,) = runner.execute([step(ids, 0, range(8), sample=draw(15, sampling))])
    assert token == whole[15]
    assert whole != greedy_reply(model.runner(8), IDS[:20], range(8), 40)


def test_top_two_logits_are_far_apart(expected):
    """So that equal tokens are no accident: the gap is far over what another order changes."""
    top = expected.topk(2).values
    assert (top[:, 0] - top[:, 1]).min() > 1e-4


def test_every_earlier_token_shows_in_the_logits(model, expected):
    for place in (0, 15, 16, 50, 88):
        changed = [*IDS[:place], (IDS[place] + 1) % 256, *IDS[place + 1 :]]
        other = prefill_logits(model.runner(6), changed, range(6))
        assert (other[-1] - expected[-1]).abs().max() > 1e-3


def test_law_backend_computes_what_stock_torch_computes(expected):
    stock = prefill_logits(tiny_model(torch.float64).runner(6), IDS, range(6))
    torch.testing.assert_close(stock, expected, atol=1e-9, rtol=0)
    assert not torch.equal(stock, expected)


def test_same_seed_same_model():
    one, other = (law_runner(4, seed=3, block_size=8) for _ in range(2))
    assert greedy_reply(one, IDS[:9], range(4), 9) == greedy_reply(other, IDS[:9], range(4), 9)
    assert greedy_reply(one, IDS[:9], range(4), 9) != greedy_reply(
        law_runner(4, seed=4, block_size=8), IDS[:9], range(4), 9
    )


def test_kept_kv_serves_at_moved_positions(model, expected):
    """Positions are relative: moving all bases alike changes rounding only, moving one does not."""
    runner = model.runner(6)
    prefill_logits(runner, IDS, range(6))

    def last_logits(bases):
        entries = [PageEntry(BlockId(block), 0, 15, base) for block, base in enumerate(bases)]
        last = entries[-1]._replace(last=89 - 80)
        return runner.logits(
            [
                SequenceStep(
                    token_ids=IDS[89:],
                    first_position=last.base + last.last,
                    entries=[*entries[:-1], last],
                    sample=draw(),
                )
            ]
        )[0]

    alike = last_logits(range(1000, 1096, 16))
    torch.testing.assert_close(alike, expected[-1], atol=1e-9, rtol=0)
    closer = last_logits([0, *range(0, 80, 16)])
    assert (closer - expected[-1]).abs().max() > 1e-3


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40), st.integers(0, 40))
def test_fixed_sum_ignores_zeros_at_the_end(values, zeros):
    short = torch.tensor(values, dtype=torch.float64)
    long = torch.cat((short, torch.zeros(zeros, dtype=torch.float64)))
    assert fixed_sum(long) == fixed_sum(short)
    torch.testing.assert_close(fixed_sum(short), short.sum(), atol=1e-10, rtol=0)


def test_fixed_exp_is_the_exponential_whatever_its_company():
    x = torch.linspace(-60, 60, 4001, dtype=torch.float64)
    torch.testing.assert_close(fixed_exp(x), x.exp(), atol=0, rtol=1e-13)
    assert fixed_exp(torch.tensor([-torch.inf, 0.0], dtype=torch.float64)).tolist()[1] == 1.0
    for place in (0, 1, 7, 4000):
        assert fixed_exp(x[place : place + 1]) == fixed_exp(x)[place]
