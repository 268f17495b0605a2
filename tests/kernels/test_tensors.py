"""GGUF tensors arrive as they are, and models of any mix of types run on the kernels."""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.errors import ModelFileError
from engine.files.spec_reader import read_spec
from engine.model.kernels.library import Format
from engine.model.kernels.matrix import quantize
from engine.model.kernels.tensors import as_floats, open_tensors
from tests.kernels.laws import by_chunks
from tests.kernels.test_native_runner import native

HIDDEN, INNER, HEADS, KV_HEADS, DIM, VOCAB, LAYERS = 256, 512, 8, 2, 32, 304, 2
IDS = np.random.default_rng(1).integers(0, VOCAB, 80).tolist()
Q4_0, Q4_1, Q8_0 = Kind.Q4_0, Kind.Q4_1, Kind.Q8_0


def write_gguf(path, kinds):
    """A tiny Llama whose matrices take the kinds in turn."""
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(DIM)
    writer.add_value_length(DIM)
    writer.add_rope_dimension_count(DIM)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1000.0)
    shapes = {"token_embd": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_q": (HEADS * DIM, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * DIM, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * DIM, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HEADS * DIM),
            f"blk.{layer}.ffn_gate": (INNER, HIDDEN),
            f"blk.{layer}.ffn_up": (INNER, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, INNER),
        }
    for index, (name, shape) in enumerate(shapes.items()):
        kind = kinds[index % len(kinds)]
        weights = (rng.standard_normal(shape) * shape[1] ** -0.5 * 1.5).astype(np.float32)
        writer.add_tensor(f"{name}.weight", _encoded(weights, kind), raw_dtype=kind)
    for name in ("output_norm", *(f"blk.{i}.{n}_norm" for i in range(LAYERS) for n in NORMS)):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


NORMS = ("attn", "ffn")


def _encoded(weights, kind):
    if kind is Kind.Q6_K:  # the package can't make it: any bytes with small scales will do
        blocks = np.random.default_rng(3).integers(
            0, 256, (len(weights), weights.shape[1] // 256, 210), dtype=np.uint8
        )
        blocks[:, :, 208:] = np.array([0.0004], np.float16).view(np.uint8)
        blocks[:, :, 192:208] = 10
        return blocks.reshape(len(weights), -1)
    return gguf.quants.quantize(weights, kind)


@pytest.mark.parametrize("kind", [Q4_0, Q4_1, Q8_0, Kind.F16, Kind.BF16, Kind.F32, Kind.Q6_K])
def test_every_type_has_the_values_that_the_package_says(tmp_path, kind):
    path = write_gguf(tmp_path / "tiny.gguf", [kind])
    name = "blk.0.ffn_down.weight"
    with open_tensors(read_spec(path)) as tensors:
        found = tensors.read("model.layers.0.mlp.down_proj.weight", (HIDDEN, INNER))
    stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    exact = gguf.quants.dequantize(stored.data, kind)
    np.testing.assert_array_equal(as_floats(found), exact.reshape(HIDDEN, INNER))


@pytest.mark.parametrize(
    ("kinds", "formats"),
    [
        ([Q4_1], ("Q4_1",)),
        ([Q8_0, *[Q4_0] * 7], ("Q4_0", "Q8_0")),
        ([Q8_0], ("Q8_0",)),
        ([Kind.F16], ("BF16",)),
        ([Q4_0, Q4_1, Kind.Q6_K], None),
        ([Kind.F32, Kind.Q6_K], ("Q8_0",)),
    ],
)
def test_a_model_of_any_types_equals_torch_within_its_rounding(
    tmp_path, library_path, kinds, formats
):
    from tests.model.support import load

    path = write_gguf(tmp_path / "tiny.gguf", kinds)
    model = native(path, library_path)
    assert formats is None or model.formats == formats
    exact = by_chunks(_Numbers(load(path).runner(5)), IDS, range(5), [])
    logits = by_chunks(model.runner(5), IDS, range(5), [9, 40])
    assert np.std(logits - exact) < 0.04 * np.std(exact)


class _Numbers:
    """A torch runner whose logits are numpy's."""

    def __init__(self, runner):
        self._runner = runner

    def logits(self, batch, *, every_token):
        return self._runner.logits(batch, every_token=every_token).numpy()


def test_rounding_to_q8_0_stays_within_half_a_step():
    weights = np.random.default_rng(0).standard_normal((5, 96)).astype(np.float32)
    weights[0] = 0
    matrix = quantize(weights)
    assert matrix.format is Format.Q8_0
    largest = np.abs(weights.reshape(5, 3, 32)).max(axis=2)
    limit = np.repeat(largest / 127 * 0.502, 32, axis=1) + 1e-6
    assert (np.abs(matrix.dequantize() - weights) <= limit).all()


def test_a_wrong_shape_names_file_tensor_and_what_is_allowed(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", [Q8_0])
    with (
        open_tensors(read_spec(path)) as tensors,
        pytest.raises(ModelFileError, match=r"ffn_up.*must be \(3, 5\)"),
    ):
        tensors.read("model.layers.0.mlp.up_proj.weight", (3, 5))
