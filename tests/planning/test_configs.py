"""Configs of known models beside `transformers` on the meta device: parameters, and its cache.

Each file of `configs` names its source in `_source`. Files hold sizes only.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

from engine.planning.families import FAMILIES
from engine.planning.shape_reader import read_planned_model

CONFIGS = sorted((Path(__file__).parent / "configs").glob("*.json"))
TOKENS = 40
WINDOW = 16  # of the model that runs, so that few tokens go beyond it


def build(values):
    """The model of a config, without memory."""
    values = {name: value for name, value in values.items() if name != "_source"}
    kind = AutoModelForImageTextToText if "vision_config" in values else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16)


def values_in(cache):
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


def assert_as_transformers(path, values):
    planned, model = read_planned_model(path), build(values)
    whole = planned.num_parameters + (planned.vision.num_parameters if planned.vision else 0)
    assert whole == sum(parameter.numel() for parameter in model.parameters())

    text = model.config.get_text_config()
    if planned.language.sliding_window:
        text.sliding_window = WINDOW
    cache, decoder = DynamicCache(config=text), model.get_decoder()
    with torch.no_grad():
        decoder(input_ids=torch.zeros(1, 1, dtype=torch.long, device="meta"), cache=cache)
        each = planned.kv_values_per_token
        assert values_in(cache) == each
        decoder(input_ids=torch.zeros(1, TOKENS, dtype=torch.long, device="meta"), cache=cache)
    full = planned.kv_values_beyond_window
    # the cache keeps what the next token sees beside itself
    assert values_in(cache) == full * (TOKENS + 1) + (each - full) * (WINDOW - 1)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_r03_m07_parameters_and_kv_are_those_of_transformers(path):
    assert_as_transformers(path, json.loads(path.read_text()))


SMALL = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "pad_token_id": None,
}
OF_FAMILIES = {
    "granite": {"attention_bias": True},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "phi3": {"sliding_window": 64},
    "qwen2": {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 2},
    "qwen2_moe": {"use_sliding_window": True, "decoder_sparse_step": 2},
    "qwen3_moe": {"use_sliding_window": True, "mlp_only_layers": [1, 2]},
    "deepseek_v2": {
        "num_experts_per_tok": 2,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 64,
    },
    "deepseek_v3": {"attention_bias": True, "num_key_value_heads": 4},
}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"qwen2_vl_text", "qwen2_5_vl_text"}))
def test_r03_m07_each_family_is_sized_as_transformers_writes_and_builds_it(tmp_path, family):
    config = AutoConfig.for_model(family, **SMALL | OF_FAMILIES.get(family, {}))
    path = tmp_path / "small.json"
    path.write_text(json.dumps(config.to_dict()))
    assert_as_transformers(path, config.to_dict())


def test_each_config_names_its_source():
    assert len(CONFIGS) >= 12
    assert all(json.loads(path.read_text())["_source"] for path in CONFIGS)
