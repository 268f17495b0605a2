"""The native path where it can be, torch with one warning where its library is absent."""

import re
import subprocess
import sys

import msgspec
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.files.spec_reader import read_spec
from engine.model import choice
from engine.model.kernels import library
from engine.model.native import NativeModel
from tests.kernels.test_tensors import write_gguf
from tests.kernels.tiny_model import write_tiny_model


@pytest.fixture
def tiny(tmp_path):
    path = write_tiny_model(tmp_path / "tiny")
    return read_spec(path), EngineConfig(model=str(path), device="cpu")


@pytest.fixture
def built(library_path, monkeypatch):
    monkeypatch.setattr(library, "HERE", library_path.parent)


def test_native_kernels_are_taken_when_they_are_there(tiny, library_path, monkeypatch):
    monkeypatch.setattr(library, "HERE", library_path.parent)
    assert isinstance(choice.prepare(*tiny), NativeModel)


def test_the_operator_chooses_the_threads(tiny, library_path, monkeypatch):
    spec, config = tiny
    monkeypatch.setattr(library, "HERE", library_path.parent)
    chosen = choice.prepare(spec, EngineConfig(model=config.model, device="cpu", cpu_threads=3))
    assert isinstance(chosen, NativeModel)
    assert chosen.threads == 3


@pytest.mark.usefixtures("built")
def test_a_driver_without_a_device_for_torch_leaves_the_native_kernels(
    tiny, tmp_path, monkeypatch, caplog
):
    spec, config = tiny
    automatic = msgspec.structs.replace(config, device="auto")
    monkeypatch.setattr(choice, "_CUDA_DEVICE", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert isinstance(choice.prepare(spec, automatic), NativeModel)
    assert "this torch finds no CUDA device" in caplog.text


def test_without_the_library_torch_serves_with_one_warning(tiny, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(library, "HERE", tmp_path)
    model = choice.prepare(*tiny)
    assert model.attention == "torch"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "not built" in warnings[0].getMessage()


def test_float32_is_torchs(tiny, library_path, monkeypatch, caplog):
    spec, config = tiny
    monkeypatch.setattr(library, "HERE", library_path.parent)
    float32 = EngineConfig(model=config.model, device="cpu", dtype="float32")
    assert choice.prepare(spec, float32).attention == "torch"
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.usefixtures("built")
def test_the_log_says_what_computes_attention_and_why(tiny, caplog):
    caplog.set_level("INFO")
    spec, config = tiny
    said = {
        "auto": r"attention native-\w+: the first suitable one$",
        "native": r"attention native-\w+: set by --attention-backend$",
        "torch": r"attention torch: set by --attention-backend$",
    }
    for wish, words in said.items():
        caplog.clear()
        asked = msgspec.structs.replace(config, attention_backend=wish)
        model = choice.prepare(spec, asked)
        assert re.search(words, caplog.records[-1].getMessage())
        assert model.attention_reason in caplog.records[-1].getMessage()
        assert not [record for record in caplog.records if record.levelname == "WARNING"]
    choice.prepare(spec, msgspec.structs.replace(config, block_size=8))
    assert "native is not available: block_size=8: the kernels have 16" in caplog.text


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"block_size": 32},
            r"torch.* \(native is not available: block_size=32: the kernels have 16\)",
        ),
        ({"dtype": "float32"}, r"torch.* \(native is not available: dtype=float32: .* bfloat16\)"),
        (
            {"kv_cache_dtype": "fp8"},
            r"torch.* \(native is not available: kv_cache_dtype=fp8: .*int8\)",
        ),
    ],
)
def test_native_kernels_that_cannot_are_refused_with_what_would_work(tiny, settings, words):
    spec, config = tiny
    asked = msgspec.structs.replace(config, attention_backend="native", **settings)
    with pytest.raises(ConfigError, match="attention_backend must be " + words):
        choice.prepare(spec, asked)


def test_native_kernels_that_were_not_built_are_refused_by_name(tiny, tmp_path, monkeypatch):
    spec, config = tiny
    monkeypatch.setattr(library, "HERE", tmp_path)
    asked = msgspec.structs.replace(config, attention_backend="native")
    with pytest.raises(
        ConfigError, match=r"must be torch.* \(native is not available: .* not built"
    ):
        choice.prepare(spec, asked)


@pytest.mark.parametrize(
    "settings", [{"block_size": 32}, {"kv_cache_dtype": "float16"}, {"kv_cache_dtype": "fp8"}]
)
def test_a_setting_that_costs_the_native_path_is_named_in_one_warning(tiny, settings, caplog):
    spec, config = tiny
    wanted = EngineConfig(model=config.model, device="cpu", **settings)
    assert choice.prepare(spec, wanted).attention == "torch"
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1
    name, value = next(iter(settings.items()))
    assert f"{name}={value}" in warnings[0].getMessage()


def test_the_native_path_imports_no_torch(tiny, library_path):
    code = (
        "import sys; from pathlib import Path; from engine.config import EngineConfig;"
        "from engine.files.spec_reader import read_spec;"
        "from engine.model.native import prepare_native_model;"
        "from tests.kernels.laws import part;"
        "path = Path(sys.argv[1]);"
        "model = prepare_native_model(read_spec(path), EngineConfig(model=str(path)),"
        " library_path=Path(sys.argv[2]));"
        "model.runner(4).execute([part([1, 2, 3], 0, 3, [2])]);"
        "sys.exit('torch' in sys.modules)"
    )
    spec, _ = tiny
    assert not subprocess.run(
        [sys.executable, "-c", code, spec.path, library_path], check=False
    ).returncode


@pytest.mark.parametrize(
    ("kinds", "settings", "runs"),
    [
        ([Kind.Q4_1, Kind.Q8_0], {}, ("Q4_1+Q8_0", "int8", "bfloat16")),
        ([Kind.Q4_1], {"kv_cache_dtype": "int8"}, ("Q4_1", "int8", "int8")),
        ([Kind.Q4_1], {"weights": "dequantized"}, ("bfloat16", "bfloat16", "bfloat16")),
        (
            [Kind.Q4_1],
            {"weights": "dequantized", "dtype": "bfloat16", "kv_cache_dtype": "float32"},
            ("bfloat16", "bfloat16", "float32"),
        ),
        ([Kind.F16], {"dtype": "bfloat16"}, ("bfloat16", "bfloat16", "bfloat16")),
        ([Kind.Q4_1], {"dtype": "float32"}, ("float32", "float32", "float32")),
        (
            [Kind.Q4_1],
            {"dtype": "float32", "weights": "dequantized"},
            ("float32", "float32", "float32"),
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("built")
def test_dtype_and_weights_say_what_runs(tmp_path, kinds, settings, runs):
    path = write_gguf(tmp_path / "tiny.gguf", kinds)
    model = choice.prepare(read_spec(path), EngineConfig(model=str(path), device="cpu", **settings))
    assert (model.weights, model.dtype, model.kv_dtype) == runs


@pytest.mark.usefixtures("built")
def test_other_arithmetic_is_another_fingerprint(tmp_path):
    path = write_gguf(tmp_path / "tiny.gguf", [Kind.Q4_1])
    settings = (
        {},
        {"weights": "dequantized"},
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "float32"},
        {"dtype": "float32"},
        {"kv_cache_dtype": "fp8"},
        {"attention_backend": "torch", "dtype": "bfloat16"},
    )
    prints = {
        choice.prepare(
            read_spec(path), EngineConfig(model=str(path), device="cpu", **one)
        ).fingerprint
        for one in settings
    }
    assert len(prints) == len(settings)


@pytest.mark.parametrize("is_built", [True, False])
def test_bfloat16_activations_for_quantised_weights_are_refused(
    tmp_path, library_path, monkeypatch, is_built
):
    monkeypatch.setattr(library, "HERE", library_path.parent if is_built else tmp_path)
    path = write_gguf(tmp_path / "tiny.gguf", [Kind.Q4_1])
    config = EngineConfig(model=str(path), device="cpu", dtype="bfloat16")
    with pytest.raises(ConfigError, match=r"dtype must be .* weights=dequantized"):
        choice.prepare(read_spec(path), config)


@pytest.mark.parametrize("settings", [{"block_size": 32}, {"weights": "dequantized"}])
def test_int8_kv_is_refused_where_torch_serves(tiny, tmp_path, monkeypatch, settings):
    spec, config = tiny
    monkeypatch.setattr(library, "HERE", tmp_path)
    wanted = EngineConfig(model=config.model, device="cpu", kv_cache_dtype="int8", **settings)
    with pytest.raises(
        ConfigError, match=r"kv_cache_dtype must be .* where torch runs.*got 'int8'\)"
    ):
        choice.prepare(spec, wanted)


@pytest.mark.parametrize("settings", [{"dtype": "float32"}, {"device": "cuda"}])
def test_int8_kv_is_refused_beside_what_torch_alone_has(settings):
    with pytest.raises(ConfigError, match=r"kv_cache_dtype must be auto, float32.*got 'int8'\)"):
        EngineConfig(model="m", kv_cache_dtype="int8", **settings)
