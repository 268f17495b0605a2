"""Memory of a server: all of its processes together, from /proc. Linux only."""

from benchmarks.process_memory import children_of, pss_bytes


def process_tree(pid: int) -> list[int]:
    """`pid` and its descendants; none of a process that has ended."""
    found = [pid]
    for one in found:
        try:
            found += children_of(one)
        except OSError:  # it has ended meanwhile
            continue
    return found


def pss_mb(pid: int) -> float:
    """Proportional set size of a process and its descendants, in 10^6 bytes.

    Shared pages are divided among those who share them, so that the sum counts them once.
    """
    total = 0
    for one in process_tree(pid):
        try:
            total += pss_bytes(one)
        except OSError:
            continue
    return total / 1e6
