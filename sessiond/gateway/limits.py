"""Bounds of the gateway. Every queue and wait of it is bounded by one of these."""

from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
"""Of a request's line and headers together, and so of each URL, id, key and name in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Bytes, seconds and counts.

    A peer that vanished is noticed within `ping_interval_s + ping_timeout_s`; one that stops
    reading is closed after `send_timeout_s` without progress; a request has to have come whole
    within `request_timeout_s`; `ask_timeout_s` bounds questions about the state of the engine.
    """

    max_frame_bytes: int = 1024 * 1024
    max_body_bytes: int = 1024 * 1024
    max_lanes: int = 32
    max_lane_frames: int = 32
    max_outbound_events: int = 64
    send_timeout_s: float = 15.0
    ping_interval_s: float = 15.0
    ping_timeout_s: float = 15.0
    heartbeat_s: float = 15.0
    request_timeout_s: float = 30.0
    ask_timeout_s: float = 5.0
    retry_after_s: int = 5
