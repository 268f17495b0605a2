"""Configs of known models beside `transformers` on the meta device: parameters, and its cache.

Each file of `configs` names its source in `_source`. Files hold sizes only.
"""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.cache_utils import DynamicCache

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


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_r03_m07_parameters_and_kv_are_those_of_transformers(path):
    planned, model = read_planned_model(path), build(json.loads(path.read_text()))
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


def test_each_config_names_its_source():
    assert len(CONFIGS) >= 12
    assert all(json.loads(path.read_text())["_source"] for path in CONFIGS)
