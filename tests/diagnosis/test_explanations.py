"""What only a GPU, a full machine or a large pool brings about: from numbers."""

import copy

import pytest

from sessiond.diagnosis.explanations import explain
from sessiond.diagnosis.memory_parts import engine_parts, gateway_parts

MIB = 2**20
PROCESS = {
    "pid": 7,
    "rss_bytes": 600 * MIB,
    "peak_rss_bytes": 700 * MIB,
    "anonymous_bytes": 400 * MIB,
    "mapped_files_bytes": 200 * MIB,
    "heap_used_bytes": 50 * MIB,
    "heap_free_bytes": 10 * MIB,
    "kv_committed_bytes": 0,
    "device_live_bytes": 0,
    "device_reserved_bytes": 0,
    "files": 20,
    "files_limit": 1024,
    "threads": 9,
}
REPORT = {
    "violations": [],
    "total_blocks": 1000,
    "active_blocks": 0,
    "leaked_blocks": 0,
    "device_bytes": 300 * MIB,
    "host_bytes": 0,
    "sessions": {"live": 0, "idle": 0, "parked": 0},
    "engine": PROCESS | {"weights_bytes": 150 * MIB, "kv_committed_bytes": 290 * MIB},
    "gateway": PROCESS
    | {
        "rss_bytes": 120 * MIB,
        "anonymous_bytes": 90 * MIB,
        "mapped_files_bytes": 30 * MIB,
        "sockets": 0,
        "tasks": 12,
        "turns": 0,
        "sessions_in_memory": 0,
        "cold": 0,
        "replay_bytes": 0,
        "session_ttl_s": 60.0,
    },
}
CAPACITY = {"running": 0, "sessions": {"live": 0, "idle": 0, "parked": 0}}


def explained(process=None, **changes):
    report = copy.deepcopy(REPORT)
    (report if process is None else report[process]).update(changes)
    return [(found.code, found.what) for found in explain(report, CAPACITY)]


def test_a_sound_server_needs_no_explanation():
    assert explained() == []


@pytest.mark.parametrize(
    ("process", "changes", "code", "words"),
    [
        (None, {"violations": ["block 1: odd"]}, "kv_not_freed", "1 invariants are violated"),
        (None, {"active_blocks": 5}, "kv_not_freed", "5 blocks are in use, but there is no"),
        ("gateway", {"sessions_in_memory": 900}, "sessions_piling_up", "ones end after 60 s"),
        (
            "engine",
            {"device_reserved_bytes": 900 * MIB, "device_live_bytes": 100 * MIB},
            "allocator_cache",
            "torch's allocator keeps 800 MiB",
        ),
        ("engine", {"kv_committed_bytes": 30 * MIB}, "host_memory", "written to so far"),
        ("gateway", {"files": 1000}, "files_and_tasks", "1000 of 1024 files open"),
    ],
)
def test_each_state_has_its_explanation(process, changes, code, words):
    found = explained(process, **changes)
    assert code in [one for one, _ in found]
    assert any(words in what for _, what in found), found


def test_cold_sessions_that_are_bounded_are_no_pile():
    assert explained("gateway", sessions_in_memory=1000, cold=900) == []


@pytest.mark.parametrize("in_file", [True, False])
def test_the_parts_of_a_process_are_its_resident_memory(in_file):
    """Weights count once, whether they are mapped from their file or lie in memory."""
    report = copy.deepcopy(REPORT)
    if not in_file:
        files = {"mapped_files_bytes": 20 * MIB, "anonymous_bytes": 580 * MIB}
        report["engine"].update(files)
    parts = dict(engine_parts(report))
    assert sum(parts.values()) == report["engine"]["rss_bytes"]
    assert parts["weights"] == 150 * MIB
    assert sum(dict(gateway_parts(report)).values()) == 120 * MIB
