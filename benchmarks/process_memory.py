"""What a process holds and how much CPU it has taken, from /proc. Linux only."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

KIB, MIB = 2**10, 2**20
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """One process, in bytes. PSS counts a page that n processes share as one n-th.

    `largest` is the largest anonymous mapping, which in an engine holds the KV pool: its size and
    the part of it that is committed.
    """

    pss: int
    pss_anonymous: int
    pss_files: int
    peak_rss: int
    largest: int
    largest_committed: int


def memory_of(pid: int) -> Memory:
    """Read a process's memory.

    Raises:
        OSError: there is no such process, or it is not ours.
    """
    folder = Path(f"/proc/{pid}")
    rollup = _fields(folder / "smaps_rollup")
    largest, committed = max(_anonymous_mappings(folder / "smaps"))
    return Memory(
        pss=rollup["Pss"],
        pss_anonymous=rollup["Pss_Anon"],
        pss_files=rollup["Pss_File"] + rollup["Pss_Shmem"],
        peak_rss=_fields(folder / "status")["VmHWM"],
        largest=largest,
        largest_committed=committed,
    )


def pss_bytes(pid: int) -> int:
    """PSS alone, which is quicker to read than all of it.

    Raises:
        OSError: there is no such process, or it is not ours.
    """
    return _fields(Path(f"/proc/{pid}/smaps_rollup"))["Pss"]


def rss_bytes(pid: int) -> int:
    """Resident memory, shared pages counted in full, as `ps` shows it.

    Raises:
        OSError: there is no such process.
    """
    return _fields(Path(f"/proc/{pid}/status"))["VmRSS"]


def cpu_s(pid: int) -> float:
    """User and system time of all its threads, in seconds; ticks are hundredths."""
    text = Path(f"/proc/{pid}/stat").read_text()
    fields = text.rpartition(")")[2].split()  # the name before it may hold blanks
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def children_of(pid: int) -> list[int]:
    """Processes that it started and that live."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for thread in threads for child in (thread / "children").read_text().split()]


def _fields(file: Path) -> dict[str, int]:
    """The lines `Name: number kB`, in bytes."""
    found = {}
    for line in file.read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[name] = int(value.split()[0]) * KIB
    return found


def _anonymous_mappings(file: Path) -> Iterator[tuple[int, int]]:
    """Size and committed bytes of each mapping without a file or name."""
    size = 0
    for line in file.read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            size = end - start if len(rest) == 4 else 0
        elif first == "Rss:" and size:
            yield size, int(rest[0]) * KIB
