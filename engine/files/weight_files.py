"""Finds the weight files of a safetensors folder. Reads none of them."""

from pathlib import Path

from engine.errors import ModelFileError
from engine.files.fields import read_object

_INDEX = "model.safetensors.index.json"
_MOST_BYTES = 64 * 2**20


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files: those that the index names; all, if there is no index.

    Raises:
        ModelFileError: there is no weight file, or the index is damaged.
    """
    index = folder / _INDEX
    if index.exists():
        weight_map = read_object(index, most_bytes=_MOST_BYTES).get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelFileError(f"{index}: weight_map must be an object")
        return [
            folder / name for name in sorted({_plain(index, one) for one in weight_map.values()})
        ]
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelFileError(f"{folder}: the folder must contain *.safetensors files (got none)")
    return paths


def _plain(index: Path, name: object) -> str:
    """Check that a name is of a file in the same folder: paths could lead elsewhere."""
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        shown = repr(name)[:100]
        raise ModelFileError(
            f"{index}: weight_map must name *.safetensors files beside it (got {shown})"
        )
    return name
