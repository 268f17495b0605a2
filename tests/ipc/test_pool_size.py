import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.planning.pool_size import CPU_MOST_BYTES, Measured, plan_pool

GIB = 2**30
BLOCK = 16 * 46080  # SmolLM2-135M in float32


def config(**settings) -> EngineConfig:
    return EngineConfig(model="m", **settings)


def measured(**changes) -> Measured:
    facts = {
        "device": "cpu",
        "free_bytes": 20 * GIB,
        "weights_bytes": GIB // 2,
        "activation_bytes": GIB // 4,
        "kv_bytes_per_block": BLOCK,
        "model_max_len": 8192,
    }
    return Measured(**(facts | changes))


def test_a_cpu_gets_a_quarter_of_free_memory():
    plan = plan_pool(config(), measured(free_bytes=8 * GIB + GIB // 4))
    assert plan.num_blocks == 2 * GIB // BLOCK
    assert plan.max_model_len == 8192
    assert plan.reason == "a quarter of 8.0 GiB free memory; --kv-cache-memory sets it"


def test_a_large_cpu_machine_gets_four_gib():
    plan = plan_pool(config(), measured(free_bytes=200 * GIB))
    assert plan.num_blocks == CPU_MOST_BYTES // BLOCK
    assert "at most 4.0 GiB" in plan.reason


def test_a_small_cpu_machine_gives_more_than_a_quarter_for_one_whole_context():
    plan = plan_pool(config(), measured(free_bytes=GIB // 4 + 500 * 2**20))
    assert plan.num_blocks == 8192 // 16 + 1
    assert plan.max_model_len == 8192
    assert "one whole context" in plan.reason


def test_a_default_context_shrinks_to_what_the_pool_holds_and_says_so():
    plan = plan_pool(config(), measured(free_bytes=GIB // 4 + 100 * 2**20))
    assert plan.num_blocks == 25 * 2**20 // BLOCK
    assert plan.max_model_len == (plan.num_blocks - 1) * 16
    assert f"max_model_len is {plan.max_model_len}, not 8192" in plan.reason


def test_an_explicit_pool_is_taken_as_it_is():
    plan = plan_pool(config(kv_cache_memory=GIB), measured())
    assert (plan.num_blocks, plan.reason) == (GIB // BLOCK, "as set by --kv-cache-memory")


def test_an_explicit_pool_over_free_memory_is_refused():
    with pytest.raises(ConfigError, match=r"kv_cache_memory must be at most 19.8 GiB.*got \d+\)"):
        plan_pool(config(kv_cache_memory=100 * GIB), measured())


def test_an_explicit_pool_under_two_blocks_is_refused_with_what_is_needed():
    with pytest.raises(ConfigError, match=f"kv_cache_memory.*{2 * BLOCK} bytes"):
        plan_pool(config(kv_cache_memory=BLOCK), measured())


def test_an_explicit_context_that_an_explicit_pool_can_not_hold_is_refused():
    with pytest.raises(ConfigError, match=f"kv_cache_memory.*{257 * BLOCK} bytes"):
        plan_pool(config(kv_cache_memory=10 * BLOCK, max_model_len=4096), measured())


def test_an_explicit_context_that_memory_can_not_hold_is_refused():
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 560.*got 4096\)"):
        plan_pool(
            config(max_model_len=4096),
            measured(free_bytes=GIB // 4 + 36 * 4 * BLOCK),
        )


def test_a_context_that_the_model_does_not_know_is_refused():
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 8192.*got 8193\)"):
        plan_pool(config(max_model_len=8193), measured())


def test_no_memory_at_all_is_refused():
    with pytest.raises(ConfigError, match="only 0 B are available"):
        plan_pool(config(), measured(free_bytes=0))


def test_a_device_gets_its_share_less_weights_and_activations():
    plan = plan_pool(
        config(gpu_memory_utilization=0.5),
        measured(device="cuda", free_bytes=79 * GIB, weights_bytes=GIB, activation_bytes=GIB),
    )
    assert plan.num_blocks == 38 * GIB // BLOCK
    assert plan.reason.startswith("50% of 80.0 GiB free on the device")


@given(
    free=st.integers(0, 64 * GIB),
    activation=st.integers(0, 4 * GIB),
    per_block=st.integers(2**10, 2**26),
    model_len=st.integers(1, 10**6),
    asked_len=st.integers(0, 10**6),
    memory=st.sampled_from([0, 2**20, GIB, 10 * GIB]),
    device=st.sampled_from(["cpu", "cuda"]),
)
def test_whatever_is_planned_fits_in_memory_and_holds_its_longest_context(  # noqa: PLR0917 -- drawn by name
    free, activation, per_block, model_len, asked_len, memory, device
):
    facts = measured(
        device=device,
        free_bytes=free,
        activation_bytes=activation,
        kv_bytes_per_block=per_block,
        model_max_len=model_len,
        weights_bytes=0,
    )
    try:
        plan = plan_pool(config(max_model_len=asked_len, kv_cache_memory=memory), facts)
    except ConfigError:
        return
    assert plan.num_blocks * per_block + activation <= free
    assert plan.num_blocks * 16 >= plan.max_model_len + 16
    assert 1 <= plan.max_model_len <= model_len
    if asked_len:
        assert plan.max_model_len == asked_len


def test_r03_m07_a_share_that_the_weights_exceed_is_told_with_one_that_is_enough():
    facts = measured(device="cuda", free_bytes=5 * GIB, weights_bytes=75 * GIB)
    with pytest.raises(ConfigError, match=r"gpu_memory_utilization must be at least 0.95: weights"):
        plan_pool(config(), facts)


def test_r03_m07_weights_that_leave_no_room_are_told():
    facts = measured(device="cuda", free_bytes=GIB // 8, weights_bytes=79 * GIB)
    with pytest.raises(ConfigError, match=r"model must be a model that leaves room.*79.0 GiB"):
        plan_pool(config(), facts)
