"""Predicted sizes beside those of models that are loaded."""

import re

import msgspec
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.config import EngineConfig
from engine.files.catalog import CATALOG, DEFAULT_MODEL
from engine.files.spec_reader import read_spec
from engine.model.kernels.build import HERE
from engine.model.native import prepare_native_model
from engine.model.runner import prepare_model
from engine.planning.device_sizes import Placing, size_up
from engine.planning.shape_reader import read_planned_model
from engine.sizes import native
from tests.model.gguf_files import weights, write

CPU = Placing(device="cpu")
CONFIG = EngineConfig(model="m", max_num_seqs=4)


def assert_as_native(path, library_path, config):
    loaded = prepare_native_model(read_spec(path), config, library_path=library_path)
    sizes = size_up(read_planned_model(path), config, CPU)
    assert sizes.weights_bytes == loaded.weights_bytes
    assert sizes.kv_bytes_per_block == loaded.kv_bytes_per_block
    drawn = config.max_num_seqs + config.num_speculative_tokens
    peak = loaded.measure_activation_peak(config.max_num_batched_tokens, drawn)
    assert sizes.activation_bytes == peak
    assert sizes.weights_format == "+".join(loaded.formats)


@pytest.mark.parametrize("kind", [Kind.F32, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K])
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_native_sizes_are_exact(tmp_path, library_path, kind, architecture):
    path = write(tmp_path / "m.gguf", weights(architecture), kind, architecture)
    assert_as_native(path, library_path, CONFIG)


@pytest.mark.parametrize(
    "changes",
    [{"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "float32"}, {"weights": "dequantized"}],
)
@pytest.mark.real_model
def test_native_sizes_of_the_default_model_are_exact(library_path, changes):
    config = msgspec.structs.replace(CONFIG, **changes)
    assert_as_native(CATALOG[DEFAULT_MODEL].path(), library_path, config)


def test_the_limits_are_those_of_the_kernels():
    header = (HERE / "kernels.h").read_text()
    for name in ("TILE_ROWS", "GROUP", "BLOCK_TOKENS", "MAX_VECTORS", "MAX_HEAD_DIM"):
        found = re.search(rf"#define {name} (\d+)", header)
        assert int(found[1]) == getattr(native, name)


def test_torch_sizes(tmp_path):
    path = write(tmp_path / "m.gguf", weights(), Kind.F32)
    config = msgspec.structs.replace(CONFIG, dtype="float32", max_num_batched_tokens=256)
    loaded = prepare_model(read_spec(path), config)
    sizes = size_up(read_planned_model(path), config, CPU)
    assert sizes.weights_bytes == loaded.weights_bytes
    assert sizes.kv_bytes_per_block == loaded.kv_bytes_per_block
    peak = loaded.measure_activation_peak(256, 4 + config.num_speculative_tokens)
    assert sizes.activation_bytes == pytest.approx(peak, rel=0.3)
