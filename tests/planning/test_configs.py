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


def build(values, **changes):
    """The model of a config, without memory."""
    values = {name: value for name, value in values.items() if name != "_source"}
    config = AutoConfig.for_model(**values)
    for name, value in changes.items():
        if getattr(config.get_text_config(), name, None):
            setattr(config.get_text_config(), name, value)
    kind = AutoModelForImageTextToText if "vision_config" in values else AutoModelForCausalLM
    with torch.device("meta"):
        return kind.from_config(config, dtype=torch.bfloat16)


def cached(values, tokens):
    """Values of K and V that the model's own cache has after so many tokens."""
    model = build(values, sliding_window=WINDOW)
    cache = DynamicCache(config=model.config.get_text_config())
    decoder = model.get_decoder()
    with torch.no_grad():
        decoder(input_ids=torch.zeros(1, tokens, dtype=torch.long, device="meta"), cache=cache)
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


@pytest.fixture(params=CONFIGS, ids=lambda path: path.stem)
def known(request):
    return request.param, json.loads(request.param.read_text())


def test_r03_m07_parameters_are_those_of_transformers(known):
    path, values = known
    planned = read_planned_model(path)
    model = build(values)
    whole = planned.num_parameters + (planned.vision.num_parameters if planned.vision else 0)
    assert whole == sum(parameter.numel() for parameter in model.parameters())


def test_r03_m07_kv_is_that_of_the_models_own_cache(known, tmp_path):
    path, values = known
    planned = read_planned_model(path)
    short = cached(values, 1)
    assert planned.kv_values_per_token == short
    beyond = cached(values, TOKENS + 1) - cached(values, TOKENS)
    assert planned.kv_values_beyond_window == beyond
