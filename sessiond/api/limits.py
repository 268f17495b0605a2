"""Limits of the gateway. Each of its queues and waits is bounded by one of these."""

from dataclasses import dataclass

from sessiond.settings import MAX_FRAME_BYTES, PING_INTERVAL_S, PING_TIMEOUT_S

MAX_HEAD_BYTES = 64 * 1024
"""Request line and headers together; this bounds each URL, id, key and name in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayLimits:
    """Bytes, seconds and counts; the defaults are those of the settings.

    A vanished peer is detected within `ping_interval_s + ping_timeout_s`. A peer that stops reading
    is closed after `send_timeout_s` without progress. A request must be complete within
    `request_timeout_s`. `ask_timeout_s` bounds queries to the engine.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_body_bytes: int = MAX_FRAME_BYTES
    max_lanes: int = 32
    max_lane_frames: int = 32
    max_outbound_events: int = 64
    send_timeout_s: float = 15.0
    ping_interval_s: float = PING_INTERVAL_S
    ping_timeout_s: float = PING_TIMEOUT_S
    heartbeat_s: float = PING_INTERVAL_S
    request_timeout_s: float = 30.0
    ask_timeout_s: float = 5.0
