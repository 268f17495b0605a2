"""Says which files of a safetensors folder hold the weights. Reads none."""

import json
from pathlib import Path

from engine.errors import ModelFileError

_INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold the weights: those that the index names, or all there are.

    Raises:
        ModelFileError: there is none, or the index is damaged.
    """
    index = folder / _INDEX
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(f"{index}: damaged ({error!r})") from error
        return [folder / name for name in sorted(names)]
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise ModelFileError(f"{folder}: holds no *.safetensors file")
    return paths
