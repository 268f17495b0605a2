from pathlib import Path

import pytest

from engine.system.limits import free_host_bytes

MIB = 2**20


def write(root: Path, files: dict[str, object]) -> Path:
    for name, text in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return root


MACHINE = {"proc/meminfo": "MemTotal: 9999999 kB\nMemAvailable: 1048576 kB"}


def test_without_groups_the_machine_decides(tmp_path):
    assert free_host_bytes(write(tmp_path, MACHINE)) == 1024 * MIB


def test_a_version_2_group_limits_and_its_cold_file_cache_does_not_count(tmp_path):
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": 512 * MIB,
            "sys/fs/cgroup/a/b/memory.current": 300 * MIB,
            "sys/fs/cgroup/a/b/memory.stat": f"anon 5\ninactive_file {100 * MIB}",
        },
    )
    assert free_host_bytes(root) == 312 * MIB


def test_a_group_above_limits_too(tmp_path):
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "0::/a/b",
            "sys/fs/cgroup/a/b/memory.max": "max",
            "sys/fs/cgroup/a/b/memory.current": 1,
            "sys/fs/cgroup/a/memory.max": 64 * MIB,
            "sys/fs/cgroup/a/memory.current": 0,
        },
    )
    assert free_host_bytes(root) == 64 * MIB


def test_a_version_1_group_limits(tmp_path):
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n0::/",
            "sys/fs/cgroup/memory/x/memory.limit_in_bytes": 100 * MIB,
            "sys/fs/cgroup/memory/x/memory.usage_in_bytes": 40 * MIB,
        },
    )
    assert free_host_bytes(root) == 60 * MIB


def test_a_group_over_its_limit_leaves_nothing(tmp_path):
    root = write(
        tmp_path,
        MACHINE
        | {
            "proc/self/cgroup": "0::/",
            "sys/fs/cgroup/memory.max": MIB,
            "sys/fs/cgroup/memory.current": 2 * MIB,
        },
    )
    assert free_host_bytes(root) == 0


def test_a_machine_that_does_not_tell_is_an_error(tmp_path):
    with pytest.raises(OSError, match="MemAvailable"):
        free_host_bytes(write(tmp_path, {"proc/meminfo": "MemTotal: 1 kB"}))


def test_this_machine_tells():
    assert free_host_bytes() > 0
