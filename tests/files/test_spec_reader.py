"""Specs of GGUF headers and config.json files, and what is refused with which words."""

import json

import pytest

from engine.errors import ModelFileError
from engine.files.spec_reader import read_spec
from tests.model.gguf_files import weights, write

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 5e5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def folder(path, **changes):
    values = {**LLAMA, **changes}
    (path / "config.json").write_text(json.dumps(values))
    return path


def test_llama_folder(tmp_path):
    spec = read_spec(folder(tmp_path))
    assert (spec.name, spec.path, spec.format) == (tmp_path.name, tmp_path, "safetensors")
    assert (spec.architecture, spec.vocab_size, spec.hidden_size) == ("llama", 100, 64)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (4, 8, 2, 8)
    assert (spec.intermediate_size, spec.max_position) == (96, 2048)
    assert (spec.rms_norm_eps, spec.rope.theta) == (1e-5, 5e5)
    assert spec.rope.frequency_divisors is None
    assert not any((spec.tied_embeddings, spec.attention_bias, spec.qk_norm))
    assert (spec.sliding_window, spec.window_layers) == (None, (False,) * 4)


def test_absent_optional_fields_mean_what_transformers_means(tmp_path):
    spec = read_spec(folder(tmp_path, num_key_value_heads=None, rope_theta=None, rms_norm_eps=None))
    assert (spec.num_kv_heads, spec.rope.theta, spec.rms_norm_eps) == (8, 10_000.0, 1e-6)


def test_families_differ_in_bias_norm_and_window(tmp_path):
    window = {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 3}
    mistral = read_spec(folder(tmp_path, architectures=["MistralForCausalLM"], sliding_window=32))
    assert (mistral.architecture, mistral.sliding_window) == ("mistral", 32)
    assert mistral.window_layers == (True,) * 4
    qwen2 = read_spec(folder(tmp_path, architectures=["Qwen2ForCausalLM"], **window))
    assert (qwen2.architecture, qwen2.attention_bias, qwen2.qk_norm) == ("qwen2", True, False)
    assert (qwen2.sliding_window, qwen2.window_layers) == (32, (False, False, False, True))
    qwen3 = read_spec(folder(tmp_path, architectures=["Qwen3ForCausalLM"], head_dim=32))
    assert (qwen3.architecture, qwen3.attention_bias, qwen3.qk_norm) == ("qwen3", False, True)
    assert qwen3.head_dim == 32


def test_window_is_off_unless_it_is_used(tmp_path):
    off = {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32}
    assert read_spec(folder(tmp_path, **off, use_sliding_window=False)).sliding_window is None
    assert read_spec(folder(tmp_path, sliding_window=32)).sliding_window is None


def test_layer_types_say_which_layers_have_the_window(tmp_path):
    changes = {
        "architectures": ["Qwen3ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 32,
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    }
    assert read_spec(folder(tmp_path, **changes)).window_layers == (False, True, False, True)
    for types in (["full_attention"], ["full_attention"] * 3 + ["chunked_attention"]):
        with pytest.raises(ModelFileError, match="layer_types must be"):
            read_spec(folder(tmp_path, **{**changes, "layer_types": types}))


@pytest.mark.parametrize("field", ["rope_scaling", "rope_parameters"])
def test_scalings_of_old_and_new_configs(tmp_path, field):
    linear = {"type" if field == "rope_scaling" else "rope_type": "linear", "factor": 2.5}
    assert read_spec(folder(tmp_path, **{field: linear})).rope.frequency_divisors == (2.5,) * 4
    rope = read_spec(folder(tmp_path, **{field: LLAMA3})).rope
    # frequencies 5e5 ** -(0, 1/4, 1/2, 3/4) turn 40, 1.5, 0.06 and 0.002 times in 256 tokens
    first, second, third, fourth = rope.frequency_divisors
    assert (first, third, fourth) == (1.0, 8.0, 8.0)
    kept = (256 / (2 * 3.141592653589793 * 5e5**0.25) - 1) / 3
    assert second == pytest.approx(1 / (kept + (1 - kept) / 8))


def test_theta_inside_rope_parameters_counts(tmp_path):
    changes = {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 7e4}}
    assert read_spec(folder(tmp_path, **changes)).rope.theta == 7e4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"architectures": ["GemmaForCausalLM"]},
            r"architectures must be a list with one of LlamaFor.*got \['GemmaForCausalLM'\]",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type must be default or linear or llama3.*got 'yarn'",
        ),
        ({"rope_scaling": {**LLAMA3, "low_freq_factor": 5.0}}, r"low_freq_factor must be.*got 5.0"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object.*got 'linear'"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'.*got 'gelu'"),
        ({"mlp_bias": True}, "mlp_bias must be False.*got True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor must be 1.0.*got 0.5"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number.*got '64'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of 1.*got 0"),
        ({"rms_norm_eps": -1}, "rms_norm_eps must be a number above 0.*got -1"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false.*got 1"),
        ({"num_key_value_heads": 3}, "KV heads must divide 8 heads .got 3"),
        ({"head_dim": 7}, "head dimension must be even .got 7"),
    ],
)
def test_unsupported_values_are_named_with_what_is_allowed(tmp_path, changes, message):
    with pytest.raises(ModelFileError, match=message):
        read_spec(folder(tmp_path, **changes))


def test_paths_that_are_no_model_are_refused(tmp_path):
    with pytest.raises(ModelFileError, match=r"must be a \.gguf file, or a folder"):
        read_spec(tmp_path / "absent.gguf")
    with pytest.raises(ModelFileError, match=r"config\.json: cannot be read"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelFileError, match="not valid JSON"):
        read_spec(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelFileError, match="a JSON object"):
        read_spec(tmp_path)


def test_gguf_header(tmp_path):
    spec = read_spec(write(tmp_path / "small.gguf", weights()))
    assert (spec.name, spec.format, spec.architecture) == ("small", "gguf", "llama")
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (300, 256, 512)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 64)
    assert (spec.max_position, spec.tied_embeddings) == (512, True)
    assert not any((spec.attention_bias, spec.qk_norm))
    assert spec.rms_norm_eps == pytest.approx(1e-5)
    assert (spec.rope.theta, spec.rope.frequency_divisors) == (10_000.0, None)


def test_gguf_tensors_say_what_the_metadata_does_not(tmp_path):
    untied = {**weights(), "output.weight": weights()["token_embd.weight"]}
    assert not read_spec(write(tmp_path / "untied.gguf", untied)).tied_embeddings
    qwen2 = write(tmp_path / "qwen2.gguf", weights("qwen2"), architecture="qwen2")
    assert read_spec(qwen2).attention_bias


def test_gguf_window_and_head_dimension(tmp_path):
    def windowed(writer):
        writer.add_sliding_window(128)
        writer.add_key_length(32)
        writer.add_value_length(32)

    spec = read_spec(write(tmp_path / "model.gguf", weights(), extra=[windowed]))
    assert (spec.sliding_window, spec.window_layers) == (128, (True, True))
    assert spec.head_dim == 32


def test_gguf_of_another_family_is_refused(tmp_path):
    path = write(tmp_path / "model.gguf", weights(), architecture="gemma2")
    with pytest.raises(ModelFileError, match=r"general\.architecture must be llama.*got 'gemma2'"):
        read_spec(path)


def test_gguf_with_partial_rotation_is_refused(tmp_path):
    path = write(
        tmp_path / "model.gguf",
        weights(),
        extra=[lambda writer: writer.add_rope_dimension_count(32)],
    )
    with pytest.raises(ModelFileError, match=r"llama\.rope\.dimension_count must be 64.*got 32"):
        read_spec(path)


def test_gguf_without_a_field_is_refused(tmp_path):
    path = write(tmp_path / "model.gguf", {"other.weight": weights()["token_embd.weight"]})
    with pytest.raises(ModelFileError, match=r"tensor 'token_embd\.weight' is missing"):
        read_spec(path)
