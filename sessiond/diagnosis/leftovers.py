"""Finds processes and files of earlier servers on this machine. Read-only, Linux only."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from engine.system.byte_size import format_bytes
from sessiond.diagnosis.finding import Finding

_PROC = Path("/proc")
_TIER_FILE = "kv-blocks.bin"
_PARENT = re.compile(rb"--parent=(\d+)")


def find_leftovers(report: Mapping[str, Any], *, tier_folder: Path, models: Path) -> list[Finding]:
    """Find leftovers next to a server that runs on this machine.

    `report` is the server's `/admin/memory`; `tier_folder` is the default folder of tiers, `models`
    that of fetched models.
    """
    own = [Path(tier["path"]) for tier in report["tiers"] if tier.get("path")]
    folders = {path.parent for path in own} | {tier_folder}
    return [
        *engines_left(report["engine"]["pid"]),
        *tier_files_left(own, folders),
        *pulls_left(models),
    ]


def engines_left(serving: int) -> Iterator[Finding]:
    """Engines whose server has ended, or that their server no longer uses."""
    mine = _parent_of(serving)
    for pid, command in _processes():
        parent = _PARENT.search(command)
        if b"engine.worker_process" not in command or parent is None or pid == serving:
            continue
        starter = int(parent[1])
        is_orphan = _parent_of(pid) != starter
        if is_orphan or starter == mine:
            owner = f"process {starter}, which has ended" if is_orphan else "this server"
            yield Finding(
                code="left_behind",
                what=f"process {pid} is an engine of {owner}; it holds "
                f"{format_bytes(_rss_bytes(pid))}",
                means="no server uses this engine; it should have ended with its server",
                do=f"end it: kill {pid}",
            )


def tier_files_left(own: Iterable[Path], folders: Iterable[Path]) -> Iterator[Finding]:
    """Tier files that no server has open, and foreign files in the tier folders."""
    in_use = {path.resolve() for path in own}
    for folder in sorted(folders):
        for path in sorted(folder.glob("*")) if folder.is_dir() else ():
            if path.resolve() in in_use or not path.is_file() or _is_locked(path):
                continue
            is_tier = path.name == _TIER_FILE
            yield Finding(
                code="left_behind",
                what=f"{path} holds {format_bytes(path.stat().st_size)} and no server has it open",
                means="KV stored by an earlier server, perhaps of another model; a server started "
                "there reuses it if the model is the same, else overwrites it"
                if is_tier
                else "not a file of the disk tier: an interrupted write, or a foreign file",
                do="delete it if no server will be started there" if is_tier else "delete it",
            )


def pulls_left(models: Path) -> Iterator[Finding]:
    """Partial files of interrupted model fetches."""
    for path in sorted(models.glob("**/.pull-*")) if models.is_dir() else ():
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        yield Finding(
            code="left_behind",
            what=f"{path} holds {format_bytes(size)}",
            means="a part of a model: its fetch was interrupted or is still running",
            do="delete the folder if no `sessiond model pull` runs",
        )


def _is_locked(path: Path) -> bool:
    """Return whether a process has the tier file locked; True if it can't be opened."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _processes() -> Iterator[tuple[int, bytes]]:
    for folder in _PROC.glob("[0-9]*"):
        try:
            yield int(folder.name), (folder / "cmdline").read_bytes()
        except OSError:  # the process has ended
            continue


def _parent_of(pid: int) -> int:
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[1])


def _rss_bytes(pid: int) -> int:
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
