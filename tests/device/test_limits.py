"""How much of a device a process may have: by the driver, a MIG instance, HAMi, neighbours."""

import pytest

from engine.config import EngineConfig
from engine.device.limits import CONTEXT_BYTES, DeviceMemoryState, free_within, memory_limit
from engine.planning.pool_size import Measured, plan_pool

GIB = 2**30
MIB = 2**20


def facts(free: int, total: int, reserved: int = 0) -> DeviceMemoryState:
    return DeviceMemoryState(free=free, total=total, reserved=reserved)


@pytest.mark.parametrize(
    ("environment", "index", "limit"),
    [
        ({}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m"}, 0, 3000 * MIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "8g"}, 0, 8 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1G"}, 3, GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1048576k"}, 0, GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT": "1073741824"}, 0, GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT": "1g"}, 0, 2 * GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "2g", "CUDA_DEVICE_MEMORY_LIMIT": "1g"}, 1, GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "0", "CUDA_DEVICE_MEMORY_LIMIT": "1g"}, 0, GIB),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "much"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "-1g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "g"}, 0, None),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": ""}, 0, None),
    ],
)
def test_hamis_limits_are_read_by_its_rules(environment, index, limit) -> None:
    assert memory_limit(environment, index) == limit


def test_of_a_mig_instance_the_driver_tells_the_instance() -> None:
    """1g.10gb of an H100: 9,728 MiB, not the card's 81,559."""
    free = free_within(facts(free=9400 * MIB, total=9728 * MIB), memory_limit({}, 0))
    assert (free.free_bytes, free.reason) == (9400 * MIB, "")


def test_where_hami_answers_for_the_driver_its_answer_counts() -> None:
    """The hook has taken CUDA's own part and the weights off: they are not taken off twice."""
    free = free_within(facts(free=6 * GIB, total=8 * GIB, reserved=GIB), 8 * GIB)
    assert (free.free_bytes, free.reason) == (6 * GIB, "")


def test_a_limit_above_the_card_is_none() -> None:
    """CUDA_DEVICE_MEMORY_LIMIT=15360m on a T4 with 14,917 MiB (HAMi-core#81)."""
    assert (
        free_within(facts(free=14_500 * MIB, total=14_917 * MIB), 15_360 * MIB).free_bytes
        == 14_500 * MIB
    )


def test_a_limit_that_the_driver_does_not_know_is_kept() -> None:
    """HAMi built without its answer to cuMemGetInfo, or a layer that only tells."""
    free = free_within(facts(free=75 * GIB, total=80 * GIB, reserved=2 * GIB), 8 * GIB)
    assert free.free_bytes == 6 * GIB - CONTEXT_BYTES
    assert free.reason == (
        "a limit of 8.0 GiB (CUDA_DEVICE_MEMORY_LIMIT), of which CUDA itself takes about 512 MiB"
    )


def test_neighbours_on_the_card_may_leave_less_than_the_limit() -> None:
    free = free_within(facts(free=3 * GIB, total=80 * GIB, reserved=2 * GIB), 8 * GIB)
    assert (free.free_bytes, free.reason) == (3 * GIB, "")


def test_a_limit_that_is_used_up_leaves_nothing() -> None:
    assert (
        free_within(facts(free=75 * GIB, total=80 * GIB, reserved=8 * GIB), 8 * GIB).free_bytes == 0
    )


def plan(free, *, reason="", weights=GIB, graphs=0, **settings):
    measured = Measured(
        device="cuda",
        free_bytes=free,
        free_reason=reason,
        weights_bytes=weights,
        activation_bytes=GIB // 2,
        graph_bytes=graphs,
        kv_bytes_per_block=MIB,
        model_max_len=4096,
    )
    return plan_pool(EngineConfig(model="m", **settings), measured)


def test_the_share_is_of_what_was_free_at_start_not_of_the_card() -> None:
    """80 GiB, of which a neighbour has 50: 0.9 of the 30 that are left (vLLM would ask for 72)."""
    planned = plan(29 * GIB)
    assert planned.num_blocks == (int(30 * GIB * 0.9) - GIB - GIB // 2) // MIB
    assert planned.reason.startswith("90% of 30.0 GiB free on the device, less weights (1.0 GiB)")


def test_graphs_are_taken_off_the_pool_and_told() -> None:
    with_graphs, without = plan(29 * GIB, graphs=GIB), plan(29 * GIB)
    assert without.num_blocks - with_graphs.num_blocks == 1024
    assert "graphs (1.0 GiB)" in with_graphs.reason
    assert "graphs" not in without.reason


def test_a_limit_is_told_with_the_pool() -> None:
    assert (
        "7.0 GiB free on the device within a limit of 8 GiB, less"
        in plan(6 * GIB, reason="a limit of 8 GiB").reason
    )


def test_a_pool_that_was_asked_for_is_the_least_of_all() -> None:
    assert plan(29 * GIB, graphs=GIB, kv_cache_memory=2 * GIB).num_blocks == 2048
