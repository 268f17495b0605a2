"""Splits a process's resident memory into parts that add up to it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class MemoryPart(NamedTuple):
    """A named part of a process's resident bytes."""

    name: str
    num_bytes: int


OTHER = "other"


def engine_parts(report: Mapping[str, Any]) -> list[MemoryPart]:
    """Return the engine's parts, from the response of `/admin/memory`."""
    process = report["engine"]
    anonymous = process["anonymous_bytes"]
    weights = process["weights_bytes"]
    # weights mapped from their file are not anonymous memory, all others are
    in_file = min(weights, process["mapped_files_bytes"])
    parts = [MemoryPart("KV pool, written to so far", process["kv_committed_bytes"])]
    parts.append(MemoryPart("host tier", report["host_bytes"]))
    known = sum(part.num_bytes for part in parts) + _heap(process)
    in_memory = min(weights - in_file, max(0, anonymous - known))
    parts.append(MemoryPart("weights", in_file + in_memory))
    return _rest(process, parts, in_file)


def gateway_parts(report: Mapping[str, Any]) -> list[MemoryPart]:
    """Return the gateway's parts, from the response of `/admin/memory`."""
    process = report["gateway"]
    return _rest(process, [MemoryPart("replays of ended turns", process["replay_bytes"])], 0)


def _heap(process: Mapping[str, Any]) -> int:
    return int(process["heap_used_bytes"] + process["heap_free_bytes"])


def _rest(process: Mapping[str, Any], parts: list[MemoryPart], in_file: int) -> list[MemoryPart]:
    parts = [
        *parts,
        MemoryPart("C heap, in use", process["heap_used_bytes"]),
        MemoryPart("C heap, free", process["heap_free_bytes"]),
        MemoryPart("libraries and other files", process["mapped_files_bytes"] - in_file),
    ]
    rest = process["rss_bytes"] - sum(part.num_bytes for part in parts)
    return [*parts, MemoryPart(OTHER, max(0, rest))]
