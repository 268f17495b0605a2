"""Explanations of a server's memory statistics. Pure; one function per kind."""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.system.byte_size import format_bytes
from sessiond.diagnosis.finding import Finding
from sessiond.diagnosis.memory_parts import OTHER, MemoryPart, engine_parts, gateway_parts

_MIB = 2**20
_MANY_SESSIONS = 500
_LARGE_SHARE = 0.25
_LARGE_BYTES = 128 * _MIB
_FULL_SHARE = 0.8
_OWN_TASKS = 40  # timers, the connection to the engine, the database, the current request
_TASKS_EACH = 8  # at most, per socket or turn


def explain(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> list[Finding]:
    """Build all explanations of the responses of `/admin/memory` and `/health/capacity`."""
    return [
        *kv_not_freed(report, capacity),
        *sessions_piling_up(report),
        *allocator_cache(report),
        *host_memory(report),
        *files_and_tasks(report),
    ]


def kv_not_freed(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> Iterator[Finding]:
    """Blocks that can't be freed because no session refers to them."""
    if report["violations"] or report["leaked_blocks"]:
        yield Finding(
            code="kv_not_freed",
            what=f"{report['leaked_blocks']} blocks are counted as used but belong to no session; "
            f"{len(report['violations'])} invariants are violated",
            means="a bug in the server: these blocks are never freed",
            do="report it with this output and the log; restarting the engine's process "
            "frees the blocks without losing a conversation",
            fault=True,
        )
    elif report["active_blocks"] and not capacity["sessions"]["live"] and not capacity["running"]:
        yield Finding(
            code="kv_not_freed",
            what=f"{report['active_blocks']} blocks are in use, but there is no session",
            means="KV is being copied to or from a tier, which takes milliseconds, or is stuck",
            do="repeat the command; if the state persists, report it as above",
        )


def sessions_piling_up(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Sessions that are never closed."""
    sessions, gateway = report["sessions"], report["gateway"]
    ttl_s = gateway["session_ttl_s"]
    kept = gateway["sessions_in_memory"] - gateway["cold"]
    idle_share = report["active_blocks"] / max(1, report["total_blocks"])
    crowded = sessions["idle"] and not gateway["turns"] and idle_share > _FULL_SHARE
    if kept < _MANY_SESSIONS and not crowded:
        return
    ends = f"after {ttl_s:g} s" if ttl_s else "never (--session-ttl is 0)"
    yield Finding(
        code="sessions_piling_up",
        what=f"{sessions['live']} sessions in the engine ({sessions['idle']} idle, "
        f"{sessions['parked']} parked), {kept} attached or held in the gateway, "
        f"{idle_share:.0%} of the pool in use; abandoned ones end {ends}",
        means="each attached session keeps its KV until its socket closes, each held one until its "
        "hold time ends; under pressure idle sessions are evicted, so no turn is refused for them",
        do="have clients close finished sessions (session.close), set --session-ttl, shorten "
        "--http-hold-s or clients' ttl_s, or limit users' max_sessions "
        "(`sessiond session list` shows their owners)",
    )


def allocator_cache(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Memory that was freed but is kept by the allocators."""
    for name in ("engine", "gateway"):
        process = report[name]
        kept = process["heap_free_bytes"]
        if kept > max(_LARGE_BYTES, _LARGE_SHARE * process["rss_bytes"]):
            yield Finding(
                code="allocator_cache",
                what=f"the C heap of the {name} keeps {format_bytes(kept)} of free memory, beside "
                f"{format_bytes(process['heap_used_bytes'])} in use",
                means="no leak: freed memory between blocks in use, or kept for reuse (malloc "
                "arenas); it does not grow beyond the peak use",
                do="nothing; if the machine is short of memory, set MALLOC_ARENA_MAX=2 and "
                "MALLOC_TRIM_THRESHOLD_=131072 in the server's environment",
            )
    engine = report["engine"]
    kept = engine["device_reserved_bytes"] - engine["device_live_bytes"]
    if kept > max(_LARGE_BYTES, _LARGE_SHARE * engine["device_live_bytes"]):
        yield Finding(
            code="allocator_cache",
            what=f"torch's allocator keeps {format_bytes(kept)} of device memory beside "
            f"{format_bytes(engine['device_live_bytes'])} in live tensors",
            means="no leak: buffers of past steps, kept for reuse",
            do="lower --gpu-memory-utilization if other programs need the memory, or set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


def host_memory(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Resident memory that belongs to no known part, or grows without a leak."""
    engine = report["engine"]
    committed, pool = engine["kv_committed_bytes"], report["device_bytes"]
    if committed and committed < _FULL_SHARE * pool:
        yield Finding(
            code="host_memory",
            what=f"{format_bytes(committed)} of the KV pool's {format_bytes(pool)} have been "
            "written to so far",
            means="no leak: unused blocks are allocated first, and the system commits memory on "
            "the first write; so the engine's memory grows once, up to the pool's size",
            do="nothing; or lower --kv-cache-memory if the pool is too large",
        )
    for name, parts in (("engine", engine_parts(report)), ("gateway", gateway_parts(report))):
        other = dict(parts)[OTHER]
        if other > max(2 * _LARGE_BYTES, _LARGE_SHARE * report[name]["rss_bytes"]):
            yield Finding(
                code="host_memory",
                what=f"{format_bytes(other)} of the {name}'s memory belong to no known part",
                means="this part has Python's arenas and libraries' buffers (some 100 MiB); more "
                "may be a leak",
                do="run `sessiond doctor --over 60` under load: if this part grows, report it",
            )


def files_and_tasks(report: Mapping[str, Any]) -> Iterator[Finding]:
    """File descriptors and tasks that are never closed."""
    for name in ("engine", "gateway"):
        process = report[name]
        if process["files"] > _FULL_SHARE * process["files_limit"]:
            yield Finding(
                code="files_and_tasks",
                what=f"the {name} has {process['files']} of {process['files_limit']} files open",
                means="each socket takes one; at the limit new clients are refused",
                do="raise the limit (`ulimit -n`), or find the clients with many open sockets",
            )
    gateway = report["gateway"]
    served = gateway["sockets"] + gateway["turns"]
    if gateway["tasks"] > _OWN_TASKS + _TASKS_EACH * served:
        yield Finding(
            code="files_and_tasks",
            what=f"the gateway has {gateway['tasks']} tasks for {gateway['sockets']} sockets and "
            f"{gateway['turns']} turns",
            means="HTTP requests are tasks, too; without requests these tasks are leaked",
            do="repeat the command at rest; if the number stays, report it",
            fault=False,
        )


def rises(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, MemoryPart]]:
    """Return each part's growth in bytes in both processes, largest first."""
    found = []
    for name, parts_of in (("engine", engine_parts), ("gateway", gateway_parts)):
        earlier = dict(parts_of(before))
        found += [
            (name, MemoryPart(part.name, part.num_bytes - earlier[part.name]))
            for part in parts_of(after)
        ]
    return sorted(found, key=lambda rise: -rise[1].num_bytes)
