"""The KV tensor: rows, layers, copies, and memory that is committed only when written."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.errors import ConfigError
from engine.ids import BlockId
from engine.kv.tensors import KvStore, kv_bytes_per_block
from tests.laws.law_model import law_spec

SPEC = dataclasses.replace(law_spec(), num_layers=3)
CPU = torch.device("cpu")


def store(num_blocks=5, block_size=4, dtype=torch.float32):
    return KvStore(SPEC, num_blocks=num_blocks, block_size=block_size, dtype=dtype, device=CPU)


def random_kv(count, seed=0):
    shape = (2, count, SPEC.num_kv_heads, SPEC.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rows(memory, *places):
    blocks, slots = np.array(places).T
    return torch.from_numpy(memory.rows(blocks, slots))


def test_starts_as_zeros():
    memory = store()
    assert all(not part.any() for layer in range(3) for part in memory.layer(layer))


def test_written_rows_come_back_from_their_layer_and_slot_only():
    memory = store()
    places = rows(memory, (4, 3), (0, 0), (2, 1))
    written = {layer: random_kv(3, layer) for layer in (0, 2)}
    for layer, (keys, values) in written.items():
        memory.write(layer, places, keys, values)
    for layer, (keys, values) in written.items():
        assert torch.equal(memory.gather(layer, places)[0], keys)
        assert torch.equal(memory.gather(layer, places)[1], values)
        assert torch.equal(memory.layer(layer)[0][[4, 0, 2], [3, 0, 1]], keys)
        assert torch.equal(memory.layer(layer)[1][[4, 0, 2], [3, 0, 1]], values)
        assert memory.layer(layer)[0].count_nonzero() == keys.numel()
    assert not memory.layer(1)[0].any()
    assert not memory.layer(1)[1].any()


def test_copied_block_is_whole_and_its_own():
    memory = store()
    places = rows(memory, (1, 0), (1, 1), (1, 2), (1, 3))
    for layer in range(3):
        memory.write(layer, places, *random_kv(4, layer))
    memory.copy_block(BlockId(1), BlockId(3))
    before = [part.clone() for part in memory.layer(2)]
    assert torch.equal(before[0][3], before[0][1])
    assert torch.equal(before[1][3], before[1][1])
    memory.write(2, places, *random_kv(4, 99))
    assert torch.equal(memory.layer(2)[0][3], before[0][3])
    assert not memory.layer(2)[0][[0, 2, 4]].any()


def test_layers_of_a_block_lie_together():
    memory = store()
    keys, values = memory.layer(1)
    per_layer = 2 * 4 * SPEC.num_kv_heads * SPEC.head_dim
    assert keys.stride(0) == 3 * per_layer
    assert keys.data_ptr() - memory.layer(0)[0].data_ptr() == per_layer * 4
    assert values.data_ptr() - keys.data_ptr() == per_layer // 2 * 4


def test_bytes_are_those_of_the_tensor():
    memory = store(num_blocks=7, dtype=torch.bfloat16)
    keys, values = memory.layer(0)
    assert memory.bytes_per_block * 7 == 3 * (keys.numel() + values.numel()) * 2
    assert memory.bytes_per_block == kv_bytes_per_block(SPEC, 4, torch.bfloat16)
    assert memory.bytes_per_token * 4 == memory.bytes_per_block


def test_narrow_store_rounds_what_is_written():
    memory = store(dtype=torch.bfloat16)
    place = rows(memory, (0, 0))
    keys, values = random_kv(1)
    memory.write(0, place, keys, values)
    assert torch.equal(memory.gather(0, place)[0], keys.bfloat16())


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_unwritten_blocks_take_no_memory():
    before = resident_bytes()
    memory = store(num_blocks=200_000, block_size=16)  # 1.2 GB
    assert memory.num_blocks * memory.bytes_per_block > 1e9
    memory.write(0, rows(memory, (50_000, 0)), *random_kv(1))
    assert resident_bytes() - before < 1e8


def test_pool_that_cannot_be_had_is_refused_with_its_size():
    with pytest.raises(
        ConfigError, match=r"kv_cache_memory must be within what the device can .*got "
    ):
        store(num_blocks=10**12)


def test_zeroed_block_is_empty_in_all_layers_and_no_other_is():
    memory = store()
    for block in (1, 2):
        places = rows(memory, *((block, slot) for slot in range(4)))
        for layer in range(3):
            memory.write(layer, places, *random_kv(4, layer))
    memory.zero_block(BlockId(1))
    for layer in range(3):
        for part in memory.layer(layer):
            assert not part[1].any()
            assert part[2].any()


FP8 = torch.float8_e4m3fn


@pytest.mark.parametrize("given_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_store_of_8_bits_rounds_and_keeps_to_its_largest_value(given_dtype):
    memory = store(dtype=FP8)
    places = rows(memory, (4, 3), (0, 0))
    keys, values = (part.to(given_dtype) for part in random_kv(2))
    keys[0, 0, :5] = torch.tensor([449.0, -449.0, 6e4, float("inf"), float("-inf")])
    keys[1, 0, 0] = float("nan")
    memory.write(1, places, keys, values)
    stored, stored_values = (part.float() for part in memory.gather(1, places))
    assert stored[0, 0, :5].tolist() == [448.0, -448.0, 448.0, 448.0, -448.0]
    assert stored[1, 0, 0].isnan()  # what was no number before is told, not hidden
    assert stored.isnan().sum() == 1
    # 3 bits behind the point: half of the last is 1/16; below 2**-6 steps are of 2**-9
    torch.testing.assert_close(stored_values, values.float(), rtol=1 / 16, atol=2**-10)
    assert not torch.equal(stored_values, values.float())


def test_a_block_of_8_bits_moves_whole():
    memory = store(dtype=FP8)
    assert memory.bytes_per_block == kv_bytes_per_block(SPEC, 4, torch.bfloat16) // 2
    places = rows(memory, *((1, slot) for slot in range(4)))
    for layer in range(3):
        memory.write(layer, places, *random_kv(4, layer))
    memory.copy_block(BlockId(1), BlockId(2))
    kept = np.empty(memory.bytes_per_block, np.uint8)
    memory.read_block(2, kept)
    memory.write_block(3, kept)
    memory.zero_block(BlockId(2))
    for layer in range(3):
        for part in memory.layer(layer):
            assert torch.equal(part[3].float(), part[1].float())
            assert part[1].float().any()
            assert not part[2].float().any()
