"""What is told of the tiers below the device."""

from typing import Literal

import msgspec

from engine.histogram import Buckets

TierName = Literal["host", "disk"]
RestoredFrom = Literal["none", "host", "disk"]


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tier below the device; rates in bytes per second, as measured at start.

    `reason`: where the tier was asked for and there is none, why, in words; else empty.
    """

    name: TierName
    bytes: int
    blocks: int = 0
    read_rate: float = 0.0
    write_rate: float = 0.0
    reason: str = ""


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the device: blocks that it holds and could hold, what moved since start.

    `bytes`: what it takes of its medium now. `refused_blocks_total` could not be written, or were
    not what they should be when read: such KV is computed again.
    """

    blocks: int
    capacity_blocks: int
    bytes: int
    stored_bytes_total: int
    fetched_bytes_total: int
    store_times: Buckets
    fetch_times: Buckets
    refused_blocks_total: int
