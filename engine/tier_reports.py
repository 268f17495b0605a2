"""Reports about the tiers below the device."""

from typing import Literal

import msgspec

from engine.histogram import Buckets

TierName = Literal["host", "disk"]
RestoredFrom = Literal["none", "host", "disk"]


class TierInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A tier below the device; rates in bytes per second, as measured at start.

    `path`: of its file. `reason`: why a requested tier is not available, as text; otherwise both
    are empty.
    """

    name: TierName
    bytes: int
    blocks: int = 0
    read_rate: float = 0.0
    write_rate: float = 0.0
    path: str = ""
    reason: str = ""


class TierStats(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks in one tier below the device, its capacity, and transfers since start.

    `bytes`: space used on its medium now. `refused_blocks_total`: blocks that could not be written,
    or failed their check when read; their KV is recomputed.
    """

    blocks: int
    capacity_blocks: int
    bytes: int
    stored_bytes_total: int
    fetched_bytes_total: int
    store_times: Buckets
    fetch_times: Buckets
    refused_blocks_total: int
