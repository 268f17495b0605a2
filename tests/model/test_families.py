"""Every family equals transformers on tiny random models that the tests save as folders."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelFileError
from tests.model.support import greedy_reply, load, prefill_logits, random_ids

transformers = pytest.importorskip("transformers")

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 96,
    "intermediate_size": 112,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 50_000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES = {
    "llama": ("Llama", {"head_dim": 12}),
    "llama-biased-llama3-rope": (
        "Llama",
        {"head_dim": 16, "attention_bias": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "llama-tied-linear-rope": (
        "Llama",
        {
            "head_dim": 16,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10_000.0},
        },
    ),
    "mistral-window": ("Mistral", {"head_dim": 16, "sliding_window": 21}),
    "mistral-full": ("Mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window-from-layer-1": (
        "Qwen2",
        {
            "use_sliding_window": True,
            "sliding_window": 21,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3-biased-window": (
        "Qwen3",
        {
            "head_dim": 16,
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 40,
            "max_window_layers": 2,
        },
    ),
}


def make_oracle(family):
    name, changes = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**{**SHAPE, **changes})
    config._attn_implementation = "eager"  # noqa: SLF001 -- transformers' own way
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            # biases and norms too, which are trivial at the start
            offset = 1.0 if parameter.ndim == 1 else 0.0
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(offset * 0.5 + noise * 0.25)
    return model


def oracle_logits(model, ids):
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request, tmp_path_factory):
    """The oracle and our model of the same folder."""
    folder = tmp_path_factory.mktemp(request.param)
    oracle = make_oracle(request.param)
    oracle.save_pretrained(folder)
    return oracle, load(folder)


def test_logits_equal_transformers_beyond_the_window(pair):
    oracle, model = pair
    ids = random_ids(150, 300)
    ours = prefill_logits(model.runner(10), ids, range(10))
    torch.testing.assert_close(ours, oracle_logits(oracle, ids), atol=1e-3, rtol=0)


def test_logits_equal_transformers_whatever_the_chunks(pair):
    oracle, model = pair
    ids = random_ids(100, 300, seed=1)
    theirs = oracle_logits(oracle, ids)
    for chunk in (1, 7, 16, 33):
        ours = prefill_logits(model.runner(7), ids, range(7), chunk)
        torch.testing.assert_close(ours, theirs, atol=1e-3, rtol=0)


def test_greedy_replies_equal_transformers_except_at_near_ties(pair):
    oracle, model = pair
    runner = model.runner(6)
    for seed in range(3):
        prompt = random_ids(20, 300, seed)
        reply = greedy_reply(runner, prompt, range(6), 64)
        theirs = oracle_logits(oracle, prompt + reply)[len(prompt) - 1 : -1]
        top = theirs.topk(2).values
        same = theirs.argmax(-1) == torch.tensor(reply)
        assert (same | (top[:, 0] - top[:, 1] < 1e-3)).all()
        assert same.sum() > 60


@pytest.mark.parametrize(
    "family", [name for name, (_, changes) in FAMILIES.items() if changes.get("sliding_window")]
)
def test_window_matters_at_the_tested_length(family, tmp_path):
    make_oracle(family).save_pretrained(tmp_path)
    ids = random_ids(150, 300)
    windowed = prefill_logits(load(tmp_path).runner(10), ids, range(10))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "sliding_window": None}))
    full = prefill_logits(load(tmp_path).runner(10), ids, range(10))
    assert (full - windowed).abs().max() > 0.1


def test_sharded_folder_equals_the_single_file(tmp_path):
    make_oracle("qwen3").save_pretrained(tmp_path / "one")
    make_oracle("qwen3").save_pretrained(tmp_path / "many", max_shard_size="50KB")
    assert len(list((tmp_path / "many").glob("*.safetensors"))) > 2
    ids = random_ids(20, 300)
    one, many = (
        prefill_logits(load(tmp_path / name).runner(2), ids, range(2)) for name in ("one", "many")
    )
    assert torch.equal(one, many)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model.norm.weight"), "'model.norm.weight' is missing"),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(95)}),
            r"must be \(96,\) \(got \(95,\)\)",
        ),
        (
            lambda tensors: tensors.update({"model.norm.weight": torch.ones(96).int()}),
            "must be one of torch.float32.*got torch.int32",
        ),
    ],
)
def test_wrong_tensor_is_refused_by_name(tmp_path, change, message):
    make_oracle("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(ModelFileError, match=message):
        load(tmp_path)


def test_folder_without_readable_weights_is_refused(tmp_path):
    make_oracle("llama").save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelFileError, match=r"do not fit|cannot be read"):
        load(tmp_path)
    path.unlink()
    with pytest.raises(ModelFileError, match="safetensors files"):
        load(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"model.norm.weight": "gone.safetensors"}}')
    with pytest.raises(ModelFileError, match=r"gone\.safetensors: cannot be read"):
        load(tmp_path)
    index.write_text("[]")
    with pytest.raises(ModelFileError, match=r"a JSON object|damaged"):
        load(tmp_path)
