"""Predicted sizes beside those of models that are loaded."""

import re

import msgspec
import pytest
from gguf import GGMLQuantizationType as Kind

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.files.catalog import CATALOG, DEFAULT_MODEL
from engine.files.spec_reader import read_spec
from engine.model.kernels.build import HERE
from engine.model.native import prepare_native_model
from engine.model.runner import prepare_model
from engine.planning import native_sizes
from engine.planning.device_sizes import Placing, size_up
from engine.planning.shape_reader import read_planned_model
from tests.kernels.tiny_model import write_tiny_model
from tests.model import gguf_files
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


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_biases_of_the_output_count(tmp_path, library_path, backend):
    path = write_tiny_model(tmp_path / "tiny", attention_bias=True)
    if backend == "native":
        assert_as_native(path, library_path, CONFIG)
    else:
        assert_as_torch(path)


def test_the_limits_are_those_of_the_kernels():
    header = (HERE / "kernels.h").read_text()
    for name in ("TILE_ROWS", "GROUP", "BLOCK_TOKENS", "MAX_VECTORS", "MAX_HEAD_DIM"):
        found = re.search(rf"#define {name} (\d+)", header)
        assert int(found[1]) == getattr(native_sizes, name)


def assert_as_torch(path, **settings):
    config = msgspec.structs.replace(
        CONFIG, attention_backend="torch", max_num_batched_tokens=256, **settings
    )
    loaded = prepare_model(read_spec(path), config)
    sizes = size_up(read_planned_model(path), config, CPU)
    assert sizes.weights_bytes == loaded.weights_bytes
    assert sizes.weights_format == loaded.weights
    assert sizes.kv_dtype == loaded.kv_dtype
    assert sizes.kv_bytes_per_block == loaded.kv_bytes_per_block
    peak = loaded.measure_activation_peak(256, 4 + config.num_speculative_tokens)
    assert sizes.activation_bytes == pytest.approx(peak, rel=0.3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "float32", "bfloat16", "fp8", "fp8_e4m3"])
def test_torch_sizes(tmp_path, dtype, kv_cache_dtype):
    path = write(tmp_path / "m.gguf", weights(), Kind.F32)
    assert_as_torch(path, dtype=dtype, kv_cache_dtype=kv_cache_dtype)


@pytest.mark.parametrize("offloaded", [0, 3, 5])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [Kind.F16, Kind.Q4_0, Kind.Q4_1, Kind.Q8_0, Kind.Q4_K, Kind.Q6_K])
def test_torch_sizes_of_kept_and_offloaded_weights(tmp_path, monkeypatch, kind, dtype, offloaded):
    monkeypatch.setattr(gguf_files, "LAYERS", 5)
    for architecture in ("llama", "qwen2"):
        path = write(tmp_path / "m.gguf", weights(architecture), kind, architecture)
        for kept in ("native", "dequantized"):
            settings = {"weights": kept, "dtype": dtype, "weights_offload_layers": offloaded}
            assert_as_torch(path, **settings)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plan_refuses_what_a_server_would(tmp_path, device):
    path = write(tmp_path / "m.gguf", weights(), Kind.F32)
    config = msgspec.structs.replace(CONFIG, weights_offload_layers=3)
    with pytest.raises(ConfigError, match=r"weights_offload_layers must be 0.*got 3\)"):
        size_up(read_planned_model(path), config, Placing(device=device))


def test_offloaded_layers_leave_their_room_in_any_planned_format(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_files, "LAYERS", 5)
    model = read_planned_model(write(tmp_path / "m.gguf", weights(), Kind.F32))
    sizes = [
        size_up(
            model,
            msgspec.structs.replace(CONFIG, weights_offload_layers=count),
            Placing(device="cuda", weights_format="awq"),
        ).weights_bytes
        for count in (0, 3, 4, 5)
    ]
    layer = sizes[0] - sizes[1]
    assert [sizes[0] - size for size in sizes] == pytest.approx([0, layer, 2 * layer, 3 * layer])
    assert layer > 256 * (256 * 3 + 512 * 3) / 2
