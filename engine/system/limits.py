"""Memory and processors that this process may use: the machine's and its control groups' limits.

Reads only.
"""

import os
from collections.abc import Iterator
from pathlib import Path


def free_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The least of `MemAvailable` and, for every control group above this process (versions 1 and 2),
    limit minus use, where reclaimable file cache does not count as use. `root` is the folder that
    contains /proc and /sys.

    Raises:
        OSError: /proc/meminfo does not exist.
    """
    return max(0, min([_available(root), *_left_in_groups(root)]))


def usable_processors(root: Path = Path("/"), affinity: int | None = None) -> int:
    """Number of threads that can run at the same time, 1 or more.

    The least of the processors in the affinity mask and, for every control group above the process
    (versions 1 and 2), quota over period, rounded up: one thread more than the quota stops the
    group for the rest of each period, so that every barrier waits for it.

    Args:
        root: folder that contains /proc and /sys.
        affinity: number of processors in the process's mask; its own by default.
    """
    if affinity is None:
        affinity = len(os.sched_getaffinity(0))
    return max(1, min([affinity, *_quotas(root)]))


def unified_groups(root: Path) -> Iterator[Path]:
    """Folders of the version 2 group and of its parents, the nearest first.

    `root` is the folder that contains /proc and /sys.
    """
    for controllers, path in _memberships(root):
        if not controllers:
            yield from _upwards(root / "sys/fs/cgroup", path)


def controller_groups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of the version 1 group of a controller and of its parents, the nearest first."""
    for controllers, path in _memberships(root):
        if controller in controllers:
            yield from _upwards(root / "sys/fs/cgroup" / controller, path)


def read_number(file: Path) -> int | None:
    """The file's number; None when it is missing or holds no number, such as "max"."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _memberships(root: Path) -> Iterator[tuple[list[str], str]]:
    """Controllers (none for version 2) and path of each group of this process."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        yield (controllers.split(",") if controllers else []), path


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        yield folder
        if folder == mount:
            return


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


def _quotas(root: Path) -> Iterator[int]:
    for folder in unified_groups(root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota.isdecimal() and period.isdecimal() and int(period):  # not "max"
            yield -(-int(quota) // int(period))
    for folder in controller_groups(root, "cpu"):
        quota_us = read_number(folder / "cpu.cfs_quota_us")  # -1, no number, without a limit
        period_us = read_number(folder / "cpu.cfs_period_us")
        if quota_us is not None and period_us:
            yield -(-quota_us // period_us)
