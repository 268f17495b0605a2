"""Memory of a server: all of its processes together, from /proc. Linux only."""

from pathlib import Path


def process_tree(pid: int) -> list[int]:
    """`pid` and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def pss_mb(pid: int) -> float:
    """Proportional set size of a process and its descendants, in 10^6 bytes.

    Shared pages are divided among those who share them, so that the sum counts them once.
    """
    total_kib = 0
    for one in process_tree(pid):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total_kib += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total_kib * 1024 / 1e6


def cpu_s(pid: int) -> float:
    """CPU time that a process and its descendants have used, in seconds."""
    total = 0
    for one in process_tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / 100  # USER_HZ
