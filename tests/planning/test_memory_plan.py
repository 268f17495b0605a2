"""Where bytes go: known models' numbers, what a card holds, and what does not fit."""

import json

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.planning.device_sizes import Placing, size_up
from engine.planning.memory_plan import DeviceMemory, Load, plan_memory
from engine.planning.shape_reader import read_planned_model

GB = 10**9
SEVEN_B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
    "torch_dtype": "float16",
}
# As published on the hub: what LlamaConfig and CLIP's default say is left out.
LLAVA = {
    "model_type": "llava",
    "torch_dtype": "float16",
    "text_config": {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 32768},
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "image_size": 336,
        "patch_size": 14,
    },
}
NOTHING = Load()
CARD = DeviceMemory(num_bytes=24 * GB, overhead_bytes=2 * GB)


@pytest.fixture
def planned(tmp_path):
    """Plan a config on a card (or what else is said)."""

    def plan(values, memory=CARD, load=NOTHING, config=None, **placing):
        (tmp_path / "config.json").write_text(json.dumps(values))
        model = read_planned_model(tmp_path)
        config = EngineConfig(model="m", **{"gpu_memory_utilization": 1.0, **(config or {})})
        sizes = size_up(model, config, Placing(**{"device": "cuda", **placing}))
        return plan_memory(config, model, sizes, memory, load)

    return plan


def per_token(plan):
    return plan.sizes.kv_bytes_per_block // plan.block_size


def test_seven_billion_weights_without_grouped_queries(planned):
    plan = planned(SEVEN_B)
    assert plan.sizes.weights_bytes == pytest.approx(14 * GB, rel=0.05)
    assert per_token(plan) == 2 * 32 * 4096 * 2 == 512 * 1024
    assert plan.total_tokens == pytest.approx(16_000, rel=0.02)
    assert 700 * per_token(plan) == 350 * 2**20
    assert plan.widest[0] == 0.9  # 20 of the 22 GB that are free, and never more


def test_grouped_queries_divide_the_kv_and_little_of_the_weights(planned):
    full, grouped = planned(SEVEN_B), planned(SEVEN_B | {"num_key_value_heads": 8})
    assert per_token(full) == 4 * per_token(grouped)
    saved = 32 * 2 * 4096 * (4096 - 1024) * 2
    assert full.sizes.weights_bytes - grouped.sizes.weights_bytes == saved
    assert grouped.sessions_of(4096) >= 4 * full.sessions_of(4096)


@pytest.mark.parametrize(("images", "kv", "total"), [(4, 1.5, 18), (8, 2.75, 19.5)])
def test_images_of_a_conversation(planned, images, kv, total):
    load = Load(text_tokens=200, images=images, generated_tokens=500)
    plan = planned(LLAVA, load=load, config={"max_num_batched_tokens": 2048})
    assert plan.load_tokens == 200 + images * 576 + 500
    assert plan.load_bytes == pytest.approx(kv * GB, rel=0.05)
    assert plan.needed_bytes == pytest.approx(total * GB, rel=0.02)


def test_a_model_that_does_not_see_takes_no_images(planned):
    with pytest.raises(ConfigError, match="accepts no images"):
        planned(SEVEN_B, load=Load(images=1))


@pytest.mark.parametrize(
    ("weights_format", "bits"), [("float32", 32), ("q4_1", 5), ("q8_0", 8.5), ("q6_k", 6.5625)]
)
def test_formats_of_weights(planned, weights_format, bits):
    plan = planned(
        SEVEN_B,
        weights_format=weights_format,
        memory=DeviceMemory(num_bytes=80 * GB, overhead_bytes=0),
    )
    half = planned(SEVEN_B).sizes.weights_bytes
    assert plan.sizes.weights_bytes == pytest.approx(half * bits / 16, rel=1e-3)


def test_four_bit_layers_leave_the_tables_in_sixteen(planned):
    tables = 2 * 32000 * 4096
    layers = planned(SEVEN_B).sizes.weights_bytes / 2 - tables
    expected = layers * (4 + 20 / 128) / 8 + 2 * tables
    plan = planned(SEVEN_B, weights_format="awq")
    assert plan.sizes.weights_bytes == pytest.approx(expected, rel=1e-3)


def test_devices_share_layers_and_copy_kv_heads_that_are_too_few(planned):
    one = planned(SEVEN_B | {"num_key_value_heads": 4})
    two = planned(SEVEN_B | {"num_key_value_heads": 4}, devices=2)
    eight = planned(SEVEN_B | {"num_key_value_heads": 4}, devices=8)
    assert two.sizes.weights_bytes == pytest.approx(one.sizes.weights_bytes / 2, rel=1e-3)
    assert (per_token(one), per_token(one)) == (2 * per_token(two), 4 * per_token(eight))
    with pytest.raises(ConfigError, match=r"devices must be a divisor of 32 heads.*got 3\)"):
        planned(SEVEN_B, devices=3)


def test_slots_of_adapters(planned):
    plan = planned(SEVEN_B, lora_slots=4, lora_rank=8)
    layer = 4 * (4096 + 4096) + 3 * (4096 + 11008)
    assert plan.sizes.lora_bytes == 4 * 32 * layer * 8 * 2


def test_a_window_bounds_what_a_session_holds(planned):
    mistral = SEVEN_B | {"model_type": "mistral", "sliding_window": 4096}
    assert planned(mistral).sessions_of(32_768) == planned(mistral).sessions_of(4096) == 3
    assert planned(SEVEN_B).sessions_of(32_768) == 0


def test_what_does_not_fit_is_said_with_numbers(planned):
    plan = planned(SEVEN_B, memory=DeviceMemory(num_bytes=12 * GB, overhead_bytes=0))
    assert (plan.pool, plan.total_tokens, plan.sessions_of(16)) == (None, 0, 0)
    assert plan.refusal == (
        "weights in float16 take 12.6 GiB, which is more than the 11.2 GiB that may be used of "
        "11.2 GiB"
    )


def test_a_share_that_was_given_is_kept_to(planned):
    plan = planned(SEVEN_B, config={"gpu_memory_utilization": 0.8})
    used = plan.num_blocks * plan.sizes.kv_bytes_per_block + plan.fixed_bytes - 2 * GB
    assert 0 <= 0.8 * 22 * GB - used < 2 * plan.sizes.kv_bytes_per_block
    assert plan.usable_bytes == pytest.approx(0.8 * 22 * GB)


def test_a_context_that_cannot_be_held_is_shortened(planned):
    plan = planned(SEVEN_B)
    assert plan.pool.max_model_len == plan.total_tokens - 16 < 32_768
