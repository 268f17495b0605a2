"""How far logits may be from the float32 CPU reference, by types; docs/gpu.md states the same."""

from pathlib import Path

import pytest
import torch

from tests.model.support import greedy_reply, load, prefill_logits, random_ids, tiny_model
from tests.model.test_default_model import MODEL

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
FLOAT8 = torch.float8_e4m3fn
# types of weights and activations, and of KV: largest error of a logit and mean KL divergence, of
# the tiny model and of the default one
TOLERANCES = {
    ("float32", "float32"): ((1e-3, 1e-6), (1e-3, 1e-6)),
    ("float32", "bfloat16"): ((0.5, 1e-3), (1.0, 2e-3)),
    ("float32", "fp8"): ((8.0, 0.15), (5.0, 0.04)),
    ("bfloat16", "bfloat16"): ((1.2, 5e-3), (4.0, 0.01)),
    ("bfloat16", "fp8"): ((9.0, 0.15), (6.0, 0.06)),
    ("float16", "float16"): ((0.15, 1e-4), (0.5, 2e-4)),
    ("float16", "fp8"): ((8.0, 0.15), (5.0, 0.04)),
}
# of the same types, however a step is cut: chunks, other blocks, beside others
CUT = {"float32": 1e-3, "bfloat16": 1.2, "float16": 0.15, "fp8": 9.0}
SEEDS = range(4)


def torch_type(name):
    return FLOAT8 if name == "fp8" else getattr(torch, name)


def errors(logits, reference):
    """Largest error of a logit, mean KL divergence, and where the likeliest token differs."""
    expected, found = reference.log_softmax(-1), logits.float().log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1).mean().item()
    return (logits.float() - reference).abs().max().item(), divergence


def assert_same_but_near_ties(logits, reference, bound):
    """Where another token is the likeliest, the reference has both within twice the error."""
    likeliest, other = reference.argmax(-1), logits.argmax(-1)
    gap = reference.gather(-1, likeliest[:, None]) - reference.gather(-1, other[:, None])
    assert gap.max() <= 2 * bound


@pytest.mark.parametrize(("dtype", "kv_dtype"), TOLERANCES)
def test_logits_of_a_tiny_model_are_within_the_stated_tolerance(dtype, kv_dtype):
    most, divergent = TOLERANCES[dtype, kv_dtype][0]
    for seed in SEEDS:
        ids = random_ids(70, seed=seed)
        reference = prefill_logits(tiny_model().runner(5), ids, range(5))
        model = tiny_model(torch_type(dtype), torch_type(kv_dtype))
        logits = prefill_logits(model.runner(5), ids, range(5), 9)
        error, divergence = errors(logits, reference)
        assert error <= most, seed
        assert divergence <= divergent, seed
        assert_same_but_near_ties(logits.float(), reference, most)


@pytest.mark.parametrize(("dtype", "kv_dtype"), TOLERANCES)
def test_however_a_step_is_cut_logits_are_within_the_stated_tolerance(dtype, kv_dtype):
    bound = CUT["fp8" if kv_dtype == "fp8" else dtype]
    runner = tiny_model(torch_type(dtype), torch_type(kv_dtype)).runner(20)
    ids = random_ids(70)
    whole = prefill_logits(runner, ids, range(5)).float()
    for chunk in (1, 9, 16):
        cut = prefill_logits(runner, ids, [19, 3, 11, 8, 14], chunk).float()
        assert (cut - whole).abs().max() <= bound
        assert_same_but_near_ties(cut, whole, bound)


@pytest.mark.real_model
@pytest.mark.parametrize(("dtype", "kv_dtype"), TOLERANCES)
def test_logits_of_the_default_model_are_within_the_stated_tolerance(
    dtype, kv_dtype, default_reference
):
    ids, reference = default_reference
    most, divergent = TOLERANCES[dtype, kv_dtype][1]
    settings = {"dtype": dtype, "kv_cache_dtype": kv_dtype, "attention_backend": "torch"}
    logits = prefill_logits(load(MODEL, **settings).runner(4), ids, range(4), 16)
    error, divergence = errors(logits, reference)
    figures = f"largest error {error:.3g}, KL divergence {divergence:.3g}"
    assert error <= most, figures
    assert divergence <= divergent, figures


@pytest.fixture(scope="module")
def default_reference():
    ids = random_ids(32, vocab=49152, seed=3)
    model = load(MODEL, dtype="float32", attention_backend="torch")
    return ids, prefill_logits(model.runner(4), ids, range(4))


@pytest.mark.real_model
def test_kept_weights_of_the_default_model_change_no_bit(default_reference):
    ids, reference = default_reference
    kept = load(MODEL, dtype="float32", attention_backend="torch", weights="native")
    assert torch.equal(prefill_logits(kept.runner(4), ids, range(4)), reference)


def test_a_greedy_reply_is_the_references_until_a_near_tie():
    """What a user notices of other types: the first token that differs was as good as decided."""
    ids = random_ids(40, seed=5)
    reference = tiny_model().runner(6)
    for (dtype, kv_dtype), ((most, _), _) in TOLERANCES.items():
        model = tiny_model(torch_type(dtype), torch_type(kv_dtype))
        reply = greedy_reply(model.runner(6), ids, range(6), 20)
        told = prefill_logits(reference, ids + reply[:-1], range(6))[len(ids) - 1 :]
        chosen = told.gather(-1, torch.tensor(reply)[:, None])[:, 0]
        assert (told.amax(-1) - chosen).max() <= 2 * most


def test_the_page_states_these_tolerances():
    page = PAGE.read_text(encoding="utf-8")
    for (dtype, kv_dtype), bounds in TOLERANCES.items():
        numbers = " | ".join(f"{value:g}" for pair in bounds for value in pair)
        assert f"| {dtype} | {kv_dtype} | {numbers} |" in page
    for name, bound in CUT.items():
        assert f"{name} {bound:g}" in page
