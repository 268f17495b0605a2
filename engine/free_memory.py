"""How much memory this process can still take: the machine's and its control groups' limits."""

from collections.abc import Iterator
from pathlib import Path


def free_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The least of `MemAvailable` and, for every control group above this process (versions 1 and
    2), limit minus use, where file cache that can be dropped does not count as use. `root` is
    where /proc and /sys lie.

    Raises:
        OSError: there is no /proc/meminfo.
    """
    return max(0, min([_available(root), *_left_in_groups(root)]))


def _available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo does not tell MemAvailable")


def _left_in_groups(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _left(root / "sys/fs/cgroup", path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            yield from _left(mount, path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(mount: Path, path: str, limit_file: str, use_file: str) -> Iterator[int]:
    """What is left in the group at `path` and in every group above it."""
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        limit = _number(folder / limit_file)
        use = _number(folder / use_file)
        if limit is not None and use is not None:
            yield limit - use + _droppable(folder)
        if folder == mount:
            return


def _number(file: Path) -> int | None:
    """The file's number; None when it is missing or says "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _droppable(folder: Path) -> int:
    """Bytes of file cache that nobody used lately."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stats = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(stats.get("total_inactive_file", stats.get("inactive_file", "0")))
