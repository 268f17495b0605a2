"""Number of usable processors, by affinity and control group quotas."""

import os
from collections.abc import Iterator
from pathlib import Path

from engine.control_groups import controller_groups, read_number, unified_groups


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
