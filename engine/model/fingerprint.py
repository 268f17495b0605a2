"""Identifies a model's exact weights and arithmetic, so that KV of another one is never used."""

import hashlib
from pathlib import Path

from engine.files.model_spec import ModelSpec
from engine.files.weight_files import weight_files

_SAMPLES = 64
_SAMPLE_BYTES = 65_536


def fingerprint(spec: ModelSpec, *arithmetic: str) -> str:
    """Return a hex SHA-256 over the spec, the names of types and backend, and the files.

    Of a file its size and 64 evenly spread samples of 64 KiB are hashed: any retraining changes
    nearly every tensor, and hashing a whole large model would take seconds at each start. Paths are
    not hashed.
    """
    digest = hashlib.sha256()
    shape = {name: getattr(spec, name) for name in spec.__slots__ if name not in {"name", "path"}}
    for part in (repr(sorted(shape.items())), *arithmetic):
        digest.update(f"{len(part)}:{part}".encode())
    for path in _files(spec):
        digest.update(_digest_of_file(path))
    return digest.hexdigest()


def _files(spec: ModelSpec) -> list[Path]:
    match spec.format:
        case "gguf":
            return [spec.path]
        case "safetensors":
            return weight_files(spec.path)
        case "random":
            return []  # the same shape has the same weights


def _digest_of_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        size = file.seek(0, 2)
        digest.update(f"{size}:".encode())
        last = max(size - _SAMPLE_BYTES, 0)
        for sample in range(_SAMPLES):
            file.seek(last * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()
