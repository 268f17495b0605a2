"""Control groups of this process and the groups above them. Reads, never writes.

Files: https://docs.kernel.org/admin-guide/cgroup-v2.html and cgroup-v1.
"""

from collections.abc import Iterator
from pathlib import Path


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
