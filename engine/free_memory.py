"""Free memory for this process, within the machine's and its control groups' limits."""

from collections.abc import Iterator
from pathlib import Path

from engine.control_groups import controller_groups, read_number, unified_groups


def free_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The least of `MemAvailable` and, for every control group above this process (versions 1 and 2),
    limit minus use, where reclaimable file cache does not count as use. `root` is the folder that
    contains /proc and /sys.

    Raises:
        OSError: /proc/meminfo does not exist.
    """
    return max(0, min([_available(root), *_left_in_groups(root)]))


def _available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")


def _left_in_groups(root: Path) -> Iterator[int]:
    for folder in unified_groups(root):
        yield from _left(folder, "memory.max", "memory.current")
    for folder in controller_groups(root, "memory"):
        yield from _left(folder, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit_file: str, use_file: str) -> Iterator[int]:
    limit = read_number(folder / limit_file)
    use = read_number(folder / use_file)
    if limit is not None and use is not None:
        yield limit - use + _droppable(folder)


def _droppable(folder: Path) -> int:
    """Bytes of file cache on the inactive list."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stats = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return int(stats.get("total_inactive_file", stats.get("inactive_file", "0")))
