"""The native path where it can be, torch with one warning where its library is absent."""

import subprocess
import sys

import pytest

from engine.config import EngineConfig
from engine.files.spec_reader import read_spec
from engine.model import choice
from engine.model.kernels import library
from engine.model.native import NativeModel
from tests.kernels.tiny_model import write_tiny_model


@pytest.fixture
def tiny(tmp_path):
    path = write_tiny_model(tmp_path / "tiny")
    return read_spec(path), EngineConfig(model=str(path), device="cpu")


def test_native_kernels_are_taken_when_they_are_there(tiny, library_path, monkeypatch):
    monkeypatch.setattr(library, "HERE", library_path.parent)
    assert isinstance(choice.prepare(*tiny), NativeModel)


def test_the_operator_chooses_the_threads(tiny, library_path, monkeypatch):
    spec, config = tiny
    monkeypatch.setattr(library, "HERE", library_path.parent)
    chosen = choice.prepare(spec, EngineConfig(model=config.model, device="cpu", cpu_threads=3))
    assert isinstance(chosen, NativeModel)
    assert chosen.threads == 3


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


@pytest.mark.parametrize("settings", [{"block_size": 32}, {"kv_cache_dtype": "float16"}])
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
