"""GGUF files: every type is dequantised, rows of q and k keep their pairs, damage is refused."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.errors import ModelFileError
from engine.files.spec_reader import read_spec
from engine.model.weights.gguf import GgufTensors
from tests.model.gguf_files import (
    DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    MLP,
    VOCAB,
    raw_blocks,
    weights,
    write,
)
from tests.model.support import load, prefill_logits, random_ids


def read(path, name, shape):
    with GgufTensors(read_spec(path)) as tensors:
        return tensors.read(name, shape).numpy()


# Half a quantisation step of blocks whose values reach about 0.4, or the rounding of the type.
TOLERANCE = {
    Kind.F32: 0.0,
    Kind.F16: 2e-4,
    Kind.BF16: 2e-3,
    Kind.Q8_0: 2e-3,
    Kind.Q4_1: 2.5e-2,
    Kind.Q4_0: 6e-2,
}


@pytest.mark.parametrize("kind", TOLERANCE, ids=lambda kind: kind.name)
def test_stored_values_come_back(tmp_path, kind):
    tensors = weights()
    path = write(tmp_path / "model.gguf", tensors, kind)
    for name, gguf_name in (
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.layers.1.mlp.down_proj.weight", "blk.1.ffn_down.weight"),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight"),
    ):
        expected = tensors[gguf_name]
        got = read(path, name, expected.shape)
        assert got.dtype == np.float32
        assert np.abs(got - expected).max() <= TOLERANCE[kind]
    assert np.abs(expected).max() > 0.3


def q4_k_block(block):
    """One block of 256 values by the format's description: 8 groups of 32, 6-bit scales."""
    d, lowest = block[0:4].view(np.float16).astype(np.float64)
    packed = block[4:16].astype(int)
    values = []
    for group in range(8):
        if group < 4:
            scale, minimum = packed[group] & 63, packed[group + 4] & 63
        else:
            scale = (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4)
            minimum = (packed[group + 4] >> 4) | (packed[group] >> 6 << 4)
        quants = block[16 + 32 * (group // 2) :][:32]
        nibbles = (quants >> 4) if group % 2 else (quants & 15)
        values.append(d * scale * nibbles - lowest * minimum)
    return np.concatenate(values)


def q6_k_block(block):
    """One block of 256 values by the format's description: 16 groups of 16, 6-bit values."""
    low, high = block[:128].astype(int), block[128:192].astype(int)
    scales = block[192:208].view(np.int8).astype(np.float64)
    d = block[208:210].view(np.float16).astype(np.float64)[0]
    values = np.empty(256)
    for place in range(256):
        half, inside = divmod(place, 128)
        quarter, column = divmod(inside, 32)
        nibble = low[64 * half + 32 * (quarter % 2) + column] >> (4 * (quarter // 2)) & 15
        upper = high[32 * half + column] >> (2 * quarter) & 3
        values[place] = d * scales[place // 16] * ((nibble | upper << 4) - 32)
    return values


@pytest.mark.parametrize(("kind", "reference"), [(Kind.Q4_K, q4_k_block), (Kind.Q6_K, q6_k_block)])
def test_k_types_follow_the_format(tmp_path, kind, reference):
    path = write(tmp_path / "model.gguf", weights(), kind)
    stored = raw_blocks(kind, (MLP, HIDDEN))
    got = read(path, "model.layers.0.mlp.up_proj.weight", (MLP, HIDDEN))
    for row in (0, 7, MLP - 1):
        np.testing.assert_allclose(got[row], reference(stored[row]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_forward_pass_equals_transformers(tmp_path, architecture):
    """The llama architecture stores rotary pairs as neighbours, qwen2 half a head apart."""
    transformers = pytest.importorskip("transformers")
    tensors = weights(architecture)
    path = write(tmp_path / "model.gguf", tensors, architecture=architecture)
    name = {"llama": "Llama", "qwen2": "Qwen2"}[architecture]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=MLP,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    oracle = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    oracle.load_state_dict(transformers_state(tensors, architecture), strict=True)
    ids = random_ids(50, VOCAB)
    with torch.inference_mode():
        theirs = oracle(torch.tensor([ids])).logits[0]
    ours = prefill_logits(load(path).runner(4), ids, range(4))
    torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def transformers_state(tensors, architecture):
    renamed = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        key = f"{renamed[parts[-2]]}.{parts[-1]}"
        if parts[0] == "blk":
            key = f"model.layers.{parts[1]}.{key}"
        if architecture == "llama" and parts[-2] in ("attn_q", "attn_k"):
            # row 2i + h of a head becomes row h * dim / 2 + i
            pairs = tensor.reshape(-1, DIM // 2, 2, HIDDEN)
            state[key] = torch.from_numpy(pairs.swapaxes(1, 2).reshape(tensor.shape))
        else:
            state[key] = torch.from_numpy(tensor)
    return {**state, "lm_head.weight": state["model.embed_tokens.weight"]}


def test_missing_tensor_is_named(tmp_path):
    tensors = weights()
    del tensors["blk.1.ffn_up.weight"]
    path = write(tmp_path / "model.gguf", tensors)
    with pytest.raises(ModelFileError, match=r"'blk\.1\.ffn_up\.weight' is missing"):
        load(path)


def test_wrong_shape_is_named(tmp_path):
    tensors = weights()
    tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"][:-1]
    path = write(tmp_path / "model.gguf", tensors)
    with pytest.raises(ModelFileError, match=r"must be \(512, 256\) \(got \(511, 256\)\)"):
        load(path)


def test_unknown_type_is_named(tmp_path):
    path = write(tmp_path / "model.gguf", weights(), Kind.Q5_0)
    with pytest.raises(ModelFileError, match=r"must be one of F32, F16, BF16, Q8_0.*got Q5_0"):
        load(path)


def test_cut_off_file_is_refused(tmp_path):
    path = write(tmp_path / "model.gguf", weights())
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(ModelFileError, match="ends beyond the end of the file"):
        load(path)


def test_llama3_divisors_are_read_from_their_tensor(tmp_path):
    divisors = np.linspace(1, 8, DIM // 2, dtype=np.float32)
    path = write(tmp_path / "model.gguf", {**weights(), "rope_freqs.weight": divisors})
    assert read_spec(path).rope.frequency_divisors == tuple(divisors.tolist())


def test_linear_scaling_divides_all_frequencies(tmp_path):
    def linear(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    path = write(tmp_path / "model.gguf", weights(), extra=[linear])
    assert read_spec(path).rope.frequency_divisors == (4.0,) * (DIM // 2)


def test_unsupported_scaling_is_refused_with_what_is_allowed(tmp_path):
    def yarn(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)

    path = write(tmp_path / "model.gguf", weights(), extra=[yarn])
    with pytest.raises(
        ModelFileError, match=r"rope\.scaling\.type must be none or linear.*got 'yarn'"
    ):
        read_spec(path)
