"""What the numbers of a server say of its memory. Pure; one function per kind of explanation."""

from collections.abc import Iterator, Mapping
from typing import Any

from engine.byte_size import format_bytes
from sessiond.diagnosis.finding import Finding
from sessiond.diagnosis.memory_parts import OTHER, Part, engine_parts, gateway_parts

_MIB = 2**20
_MANY_SESSIONS = 500
_LARGE_SHARE = 0.25
_LARGE_BYTES = 128 * _MIB
_FULL_SHARE = 0.8
_TASKS_OF_ITS_OWN = 40  # timers, the engine's link, the database, whoever asks
_TASKS_EACH = 8  # of a socket or a turn, at most


def explain(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> list[Finding]:
    """All that can be told from the answers of `/admin/memory` and `/health/capacity`."""
    return [
        *kv_not_freed(report, capacity),
        *sessions_piling_up(report),
        *allocator_cache(report),
        *host_memory(report),
        *files_and_tasks(report),
    ]


def kv_not_freed(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> Iterator[Finding]:
    """Blocks that nobody can give back, because nobody knows that it has them."""
    if report["violations"] or report["leaked_blocks"]:
        yield Finding(
            code="kv_not_freed",
            what=f"{report['leaked_blocks']} blocks are counted as used and held by no session; "
            f"{len(report['violations'])} invariants are broken",
            means="a fault of the server: these blocks never come back",
            do="keep this output and the log and report them; restarting the engine's process "
            "frees the blocks, and no conversation is lost by it",
            fault=True,
        )
    elif report["active_blocks"] and not capacity["sessions"]["live"] and not capacity["running"]:
        yield Finding(
            code="kv_not_freed",
            what=f"{report['active_blocks']} blocks are in use, but there is no session",
            means="KV is on its way to or from a tier, which takes milliseconds; else it is stuck",
            do="ask again; if it stays, report it as above",
        )


def sessions_piling_up(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Sessions that nobody ends."""
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
        means="each attached session keeps its KV until its socket leaves, each held one until its "
        "time is over; under pressure the idle ones give way, so that no turn is refused for them",
        do="have clients close what is over (session.close), set --session-ttl, shorten "
        "--http-hold-s or clients' ttl_s, or give users a max_sessions "
        "(`sessiond session list` tells whose they are)",
    )


def allocator_cache(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Memory that was freed and is kept by who manages it."""
    for name in ("engine", "gateway"):
        process = report[name]
        kept = process["heap_free_bytes"]
        if kept > max(_LARGE_BYTES, _LARGE_SHARE * process["rss_bytes"]):
            yield Finding(
                code="allocator_cache",
                what=f"the C heap of the {name} keeps {format_bytes(kept)} for later, beside "
                f"{format_bytes(process['heap_used_bytes'])} in use",
                means="no leak: what was freed lies between blocks in use, or waits to be used "
                "again (malloc arenas); it does not rise beyond the highest use",
                do="nothing, unless the machine is short: then set MALLOC_ARENA_MAX=2 and "
                "MALLOC_TRIM_THRESHOLD_=131072 in the server's environment",
            )
    engine = report["engine"]
    kept = engine["device_reserved_bytes"] - engine["device_live_bytes"]
    if kept > max(_LARGE_BYTES, _LARGE_SHARE * engine["device_live_bytes"]):
        yield Finding(
            code="allocator_cache",
            what=f"torch's allocator keeps {format_bytes(kept)} of device memory beside "
            f"{format_bytes(engine['device_live_bytes'])} in live tensors",
            means="no leak: buffers of past steps, to be used again",
            do="lower --gpu-memory-utilization if others need it, or set "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        )


def host_memory(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Resident memory that no known part accounts for, or that only looks like a rise."""
    engine = report["engine"]
    committed, pool = engine["kv_committed_bytes"], report["device_bytes"]
    if committed and committed < _FULL_SHARE * pool:
        yield Finding(
            code="host_memory",
            what=f"{format_bytes(committed)} of the KV pool's {format_bytes(pool)} have been "
            "written to so far",
            means="no leak: blocks that were never used are taken first, and the system commits "
            "memory when it is first written to; so the engine's memory rises up to the pool's "
            "size, once",
            do="nothing; or lower --kv-cache-memory if it is too much",
        )
    for name, parts in (("engine", engine_parts(report)), ("gateway", gateway_parts(report))):
        other = dict(parts)[OTHER]
        if other > max(2 * _LARGE_BYTES, _LARGE_SHARE * report[name]["rss_bytes"]):
            yield Finding(
                code="host_memory",
                what=f"{format_bytes(other)} of the {name}'s memory belong to no known part",
                means="Python's own arenas and buffers of libraries are here (some 100 MiB); more "
                "may be a leak",
                do="compare with `sessiond doctor --over 60` under load: if it is this part that "
                "rises, report it",
            )


def files_and_tasks(report: Mapping[str, Any]) -> Iterator[Finding]:
    """Descriptors and tasks that nobody ends."""
    for name in ("engine", "gateway"):
        process = report[name]
        if process["files"] > _FULL_SHARE * process["files_limit"]:
            yield Finding(
                code="files_and_tasks",
                what=f"the {name} has {process['files']} of {process['files_limit']} files open",
                means="every socket is one; at the limit no further client is let in",
                do="raise the limit (`ulimit -n`), or look who keeps so many sockets open",
            )
    gateway = report["gateway"]
    served = gateway["sockets"] + gateway["turns"]
    if gateway["tasks"] > _TASKS_OF_ITS_OWN + _TASKS_EACH * served:
        yield Finding(
            code="files_and_tasks",
            what=f"the gateway has {gateway['tasks']} tasks for {gateway['sockets']} sockets and "
            f"{gateway['turns']} turns",
            means="requests over HTTP are tasks, too; where there are none, tasks are left behind",
            do="ask again at rest; if it stays, report it",
            fault=False,
        )


def rises(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Part]]:
    """By how many bytes each part of both processes has grown, the most first; shrunk ones last."""
    found = []
    for name, parts_of in (("engine", engine_parts), ("gateway", gateway_parts)):
        earlier = dict(parts_of(before))
        found += [
            (name, Part(part.name, part.num_bytes - earlier[part.name])) for part in parts_of(after)
        ]
    return sorted(found, key=lambda rise: -rise[1].num_bytes)
