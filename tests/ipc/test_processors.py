import os

import pytest

from engine.system.limits import usable_processors
from tests.ipc.test_free_memory import write


def test_without_groups_the_affinity_decides(tmp_path):
    assert usable_processors(tmp_path, affinity=6) == 6


@pytest.mark.parametrize(
    ("limit", "threads"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 2),  # what is left over is worth a thread
        ("10000 100000", 1),
        ("1600000 100000", 8),
        ("50000 0", 8),
        ("nonsense", 8),
    ],
)
def test_a_version_2_quota_is_rounded_up(tmp_path, limit, threads):
    root = write(tmp_path, {"proc/self/cgroup": "0::/a", "sys/fs/cgroup/a/cpu.max": limit})
    assert usable_processors(root, affinity=8) == threads


def test_a_group_above_limits_too(tmp_path):
    files = {
        "proc/self/cgroup": "0::/a/b",
        "sys/fs/cgroup/a/b/cpu.max": "max 100000",
        "sys/fs/cgroup/a/cpu.max": "300000 100000",
    }
    assert usable_processors(write(tmp_path, files), affinity=8) == 3


@pytest.mark.parametrize(("quota", "threads"), [(-1, 8), (250_000, 3), (100_000, 1), (0, 1)])
def test_a_version_1_quota_limits(tmp_path, quota, threads):
    files = {
        "proc/self/cgroup": "3:cpu,cpuacct:/x\n2:memory:/x\n0::/",
        "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": quota,
        "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": 100_000,
    }
    assert usable_processors(write(tmp_path, files), affinity=8) == threads


def test_this_machine_tells():
    assert 1 <= usable_processors() <= len(os.sched_getaffinity(0))
