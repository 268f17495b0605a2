"""A process's resident memory, split into parts that add up. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Part(NamedTuple):
    """Some of a process's resident bytes, and what they are."""

    name: str
    num_bytes: int


OTHER = "other"


def engine_parts(report: Mapping[str, Any]) -> list[Part]:
    """The engine's, from the answer of `/admin/memory`."""
    process = report["engine"]
    anonymous = process["anonymous_bytes"]
    weights = process["weights_bytes"]
    # Mapped from their file they are no memory of the process's own; else they are.
    in_file = min(weights, process["mapped_files_bytes"])
    parts = [Part("KV pool, written to so far", process["kv_committed_bytes"])]
    parts.append(Part("host tier", report["host_bytes"]))
    known = sum(part.num_bytes for part in parts) + _heap(process)
    in_memory = min(weights - in_file, max(0, anonymous - known))
    parts.append(Part("weights", in_file + in_memory))
    return _rest(process, parts, in_file)


def gateway_parts(report: Mapping[str, Any]) -> list[Part]:
    """The gateway's."""
    process = report["gateway"]
    return _rest(process, [Part("replays of ended turns", process["replay_bytes"])], 0)


def _heap(process: Mapping[str, Any]) -> int:
    return int(process["heap_used_bytes"] + process["heap_free_bytes"])


def _rest(process: Mapping[str, Any], parts: list[Part], in_file: int) -> list[Part]:
    parts = [
        *parts,
        Part("C heap, in use", process["heap_used_bytes"]),
        Part("C heap, kept for later", process["heap_free_bytes"]),
        Part("libraries and other files", process["mapped_files_bytes"] - in_file),
    ]
    rest = process["rss_bytes"] - sum(part.num_bytes for part in parts)
    return [*parts, Part(OTHER, max(0, rest))]
