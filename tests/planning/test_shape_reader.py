"""Shapes of configs with and without what `transformers` leaves out, and refusals in words."""

import json

import pytest

from engine.errors import ModelFileError
from engine.planning.shape import num_parameters
from engine.planning.shape_reader import read_planned_model
from tests.planning.test_memory_plan import LLAVA, SEVEN_B


@pytest.fixture
def read(tmp_path):
    def write_and_read(values):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(values))
        return read_planned_model(path)

    return write_and_read


def test_known_counts_of_weights(read):
    assert num_parameters(read(SEVEN_B).language) == 6_738_415_616  # Llama 2 7B
    vision = read(LLAVA).vision
    projector = 1024 * 4096 + 4096 + 4096 * 4096 + 4096
    assert vision.num_parameters - projector == 303_507_456  # CLIP ViT-L/14 at 336 pixels


def test_families_differ_in_bias_norm_window_and_ties(read):
    qwen2 = read(SEVEN_B | {"model_type": "qwen2", "tie_word_embeddings": True}).language
    assert (qwen2.attention_bias, qwen2.tied_embeddings, qwen2.sliding_window) == (True, True, None)
    assert read(SEVEN_B | {"model_type": "qwen3", "head_dim": 128}).language.qk_norm
    windowed = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 30}
    assert (
        read(SEVEN_B | {"model_type": "qwen2"} | windowed).language.window_layers.count(True) == 2
    )


def test_towers_differ_in_the_class_token(read):
    siglip = LLAVA | {
        "vision_config": LLAVA["vision_config"] | {"model_type": "siglip_vision_model"}
    }
    assert read(siglip).vision.places() == 576
    full = LLAVA | {"vision_feature_select_strategy": "full"}
    assert read(full).vision.tokens() == 577


@pytest.mark.parametrize(("given", "kept"), [("torch.float32", "float32"), ("int3", "float16")])
def test_the_type_of_stored_weights(read, given, kept):
    assert read(SEVEN_B | {"torch_dtype": given}).stored_format == kept


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            SEVEN_B | {"num_local_experts": 8},
            "model_type must be one of deepseek_v2, deepseek_v3, gpt_oss, mixtral,",
        ),
        (SEVEN_B | {"hidden_size": "big"}, "hidden_size must be a whole number"),
        (
            SEVEN_B | {"num_key_value_heads": 5},
            "num_key_value_heads must be a divisor of 32",
        ),
        ({"model_type": "llama"}, "'num_hidden_layers' is missing"),
        (SEVEN_B | {"model_type": 7}, "model_type must be a text"),
        (
            LLAVA | {"vision_config": LLAVA["vision_config"] | {"model_type": "pixtral"}},
            "model_type must be clip_vision_model or siglip_vision_model or",
        ),
        (
            LLAVA | {"vision_config": LLAVA["vision_config"] | {"patch_size": 999}},
            "patch_size must be at most image_size=336",
        ),
    ],
)
def test_what_cannot_be_planned_is_said(read, values, said):
    with pytest.raises(ModelFileError) as caught:
        read(values)
    assert said in str(caught.value)


def test_what_is_no_model(tmp_path):
    with pytest.raises(ModelFileError, match=r"must be a \.gguf file, a config.json, or"):
        read_planned_model(tmp_path / "gone")
