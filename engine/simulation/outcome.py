"""Runs policies and references over a trace and reports the results."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import msgspec

from engine.simulation.hints import Cut, Hints, cuts
from engine.simulation.reference import Reference, hits_of
from engine.simulation.trace import Request, Trace
from policies.registry import placement_policy

KV_BYTES_PER_TOKEN = 23040
"""Of the default model: 360 KiB per block of 16 tokens."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One policy with one capacity. Capacity, look-ups and hits in blocks, evictions in sessions.

    `oracle`: it knows the future. `bytes_moved`: evicted KV that was needed again, and restored or
    recomputed. `most_sessions`: maximum of known sessions. Fields that do not apply to a reference
    on bare blocks are None.
    """

    trace: str
    policy: str
    capacity: int
    oracle: bool
    hints: str | None
    requests: int
    lookups: int
    hits: int
    hit_ratio: float
    bytes_moved: int | None = None
    evictions: int | None = None
    refused: int | None = None
    most_sessions: int | None = None


def compare(
    trace: Trace, policies: Sequence[str], capacities: Sequence[int], hints: Hints | None
) -> Iterator[Outcome]:
    """The references and the policies, with each capacity.

    Raises:
        UnknownPlacementPolicyError: there is no policy of such a name.
    """
    requests = list(trace.requests)
    said = cuts(requests, hints) if hints else {}
    references: list[Reference] = ["fifo", "belady"]
    if hints:
        references.insert(1, "dead_block_lru")
    for capacity in capacities:
        for reference in references:
            yield _of_reference(trace, requests, reference, capacity)
        for policy in policies:
            yield _of_policy(trace, policy, capacity, hints, said)


def replay_only(
    trace: Trace, policies: Sequence[str], capacities: Sequence[int]
) -> Iterator[Outcome]:
    """The policies alone, in memory that does not grow with the number of requests.

    Raises:
        UnknownPlacementPolicyError: there is no policy of such a name.
    """
    for capacity in capacities:
        for policy in policies:
            yield _of_policy(trace, policy, capacity)


def _of_policy(
    trace: Trace,
    policy: str,
    capacity: int,
    hints: Hints | None = None,
    said: Mapping[int, Sequence[Cut]] = MappingProxyType({}),
) -> Outcome:
    from engine.simulation.replay import (
        replay,  # imports numpy, which the gateway never loads
    )

    stats = replay(trace.requests, placement_policy(policy), capacity, said)
    return Outcome(
        trace=trace.name,
        policy=policy,
        capacity=capacity,
        oracle=hints is not None,
        hints=hints and hints.value,
        requests=stats.requests,
        lookups=stats.lookups,
        hits=stats.hits,
        hit_ratio=_ratio(stats.hits, stats.lookups),
        bytes_moved=stats.returned_blocks * trace.block_tokens * KV_BYTES_PER_TOKEN,
        evictions=stats.evictions,
        refused=stats.refused,
        most_sessions=stats.most_sessions,
    )


def _of_reference(
    trace: Trace, requests: Sequence[Request], reference: Reference, capacity: int
) -> Outcome:
    lookups = sum(len(request.blocks) for request in requests)
    hits = hits_of(reference, requests, capacity)
    return Outcome(
        trace=trace.name,
        policy=reference,
        capacity=capacity,
        oracle=reference != "fifo",
        hints=None,
        requests=len(requests),
        lookups=lookups,
        hits=hits,
        hit_ratio=_ratio(hits, lookups),
    )


def _ratio(hits: int, lookups: int) -> float:
    return hits / lookups if lookups else 0.0
