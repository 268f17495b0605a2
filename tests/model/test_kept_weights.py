"""Quantised weights that are kept give the bits of those that were dequantised at load."""

import gguf
import numpy as np
import pytest
import torch

from engine.files.spec_reader import read_spec
from engine.model.llama import FixedInputs
from engine.model.weights import quantized
from engine.model.weights.gguf import GgufTensors
from engine.model.weights.quantized import QUANTIZED, QuantizedMatrix, QuantizedRows
from tests.model.capturable import NothingWithTheHost
from tests.model.gguf_files import HIDDEN, MLP, Kind, raw_blocks, weights, write
from tests.model.support import greedy_reply, load, prefill_logits, random_ids

IDS = random_ids(40, vocab=300)
KINDS = [Kind[name] for name in QUANTIZED]


def random_blocks(kind, rows, columns, seed=0):
    """Any bytes whose scales are numbers."""
    values, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows, columns // values, size), dtype=np.uint8)
    scales = {Kind.Q6_K: [208], Kind.Q4_1: [0, 2], Kind.Q4_K: [0, 2]}.get(kind, [0])
    for place in scales:
        halves = rng.normal(0, 0.01, blocks.shape[:2]).astype(np.float16)
        blocks[..., place : place + 2] = halves.view(np.uint8).reshape(*blocks.shape[:2], 2)
    return blocks.reshape(rows, -1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_values_are_the_packages_bit_for_bit(kind):
    blocks = random_blocks(kind, 37, 512)
    expected = gguf.quants.dequantize(blocks, kind)
    rows = QuantizedRows(kind=kind.name, data=torch.from_numpy(blocks))
    assert rows.columns == 512
    got = rows.values().numpy()
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert len(np.unique(got)) > 1000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_matrix_of_parts_is_made_in_pieces_and_by_single_rows(dtype, monkeypatch):
    monkeypatch.setattr(quantized, "_VALUES_AT_ONCE", 3 * 512)
    parts = [
        QuantizedRows(kind=kind.name, data=torch.from_numpy(random_blocks(kind, 8, 512, seed)))
        for seed, kind in enumerate(KINDS)
    ]
    whole = QuantizedMatrix(parts=tuple(parts), dtype=dtype).dense()
    assert torch.equal(whole, torch.cat([part.values() for part in parts]).to(dtype))
    one = QuantizedMatrix(parts=(parts[3],), dtype=dtype)
    places = torch.tensor([7, 0, 7, 2])
    assert torch.equal(one.rows(places), one.dense()[places])


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_logits_and_replies_are_those_of_dequantised_weights(tmp_path, kind, architecture):
    path = write(tmp_path / "m.gguf", weights(architecture), kind, architecture)
    settings = {"attention_backend": "torch"}
    kept = load(path, weights="native", **settings)
    dequantized = load(path, weights="dequantized", **settings)
    assert (kept.weights, dequantized.weights) == (kind.name, "float32")
    assert kept.weights_bytes < dequantized.weights_bytes / 3
    assert kept.fingerprint == dequantized.fingerprint  # KV of one serves the other
    runners = [model.runner(5) for model in (kept, dequantized)]
    logits = [prefill_logits(runner, IDS, range(5), 17) for runner in runners]
    assert torch.equal(*logits)
    replies = [greedy_reply(runner, IDS, range(5), 5) for runner in runners]
    assert replies[0] == replies[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_kept_weights_are_rounded_as_dequantised_ones_are(tmp_path, dtype):
    path = write(tmp_path / "m.gguf", weights(), Kind.Q8_0)
    models = [load(path, weights=kept, dtype=dtype) for kept in ("native", "dequantized")]
    logits = [prefill_logits(model.runner(5), IDS, range(5), 17) for model in models]
    assert torch.equal(*logits)
    assert logits[0].isfinite().all()


class NoAttention:
    def attend(self, _layer, queries):
        return queries.flatten(1)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_step_with_kept_weights_can_be_captured(tmp_path, kind):
    path = write(tmp_path / "m.gguf", weights(), kind)
    model = load(path, weights="native", attention_backend="torch")
    llama, store = model.llama, model.runner(2).store
    inputs = FixedInputs(
        table=torch.zeros((4, 3), dtype=torch.int64), lines=llama.arithmetic.table.from_zero(10)
    )
    with torch.inference_mode(), NothingWithTheHost():
        logits = llama.forward_fixed(inputs, NoAttention(), store)
    assert logits.isfinite().all()


def test_float_tensors_among_quantised_ones_are_dense(tmp_path):
    path = write(tmp_path / "m.gguf", weights(), Kind.F16)
    model = load(path, weights="native")
    assert model.weights == "float32"
    with GgufTensors(read_spec(path)) as source:
        assert source.read_quantized("model.layers.0.mlp.up_proj.weight", (MLP, HIDDEN)) is None


def test_the_bytes_are_the_files(tmp_path):
    path = write(tmp_path / "m.gguf", weights(), Kind.Q4_K)
    with GgufTensors(read_spec(path)) as source:
        rows = source.read_quantized("model.layers.0.mlp.up_proj.weight", (MLP, HIDDEN))
    assert np.array_equal(rows.data.numpy(), raw_blocks(Kind.Q4_K, (MLP, HIDDEN)))


def test_auto_is_what_was_measured_to_be_faster(tmp_path):
    path = write(tmp_path / "m.gguf", weights(), Kind.Q4_1)
    assert load(path).weights == "float32"
