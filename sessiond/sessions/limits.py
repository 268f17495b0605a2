"""Bounds of the service: values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Seconds and tokens.

    `turn_timeout_s`, `queue_timeout_s` or `session_ttl_s` 0 means no limit. `max_outstanding`
    bounds running and waiting turns; `max_cold_contexts` bounds sessions without KV whose ids the
    engine keeps. The watermarks apply to the KV demand of running and waiting turns, in pools:
    above `demand_warn_watermark` a warning is logged, above `demand_high_watermark` new turns are
    refused; 0: never.
    `ask_timeout_s` bounds engine queries and `cancel_timeout_s` the wait for a cancelled turn, as
    an engine may hang. `summary_wait_s` bounds how long a turn waits for a summary,
    `background_summary_s` the duration of a background summary; at most
    `max_background_summaries` run at a time. A server renews its lease every `heartbeat_s`.
    A quota reservation expires `reservation_s` after its server died; limits set on another server
    are seen after `quota_fresh_s`; residency is sampled every `residency_every_s`.
    An idempotency key lives for `idempotency_ttl_s`.
    Events are kept for reconnecting clients: per turn up to `replay_events` and
    `replay_event_bytes`; of ended turns for `replay_ttl_s`, together up to `replay_memory_bytes`.
    """

    default_max_output_tokens: int = 1024
    max_outstanding: int = 1024
    demand_warn_watermark: float = 0.9
    demand_high_watermark: float = 16.0
    turn_timeout_s: float = 0.0
    queue_timeout_s: float = 0.0
    http_hold_s: float = 60.0
    session_ttl_s: float = 0.0
    engine_ready_timeout_s: float = 60.0
    drain_timeout_s: float = 30.0
    cancel_timeout_s: float = 5.0
    ask_timeout_s: float = 5.0
    background_summary_s: float = 300.0
    summary_wait_s: float = 20.0
    max_background_summaries: int = 4
    reap_every_s: float = 1.0
    heartbeat_s: float = 5.0
    max_cold_contexts: int = 1024
    reservation_s: float = 30.0
    quota_fresh_s: float = 1.0
    residency_every_s: float = 5.0
    idempotency_ttl_s: float = 86400.0
    replay_events: int = 4096
    replay_event_bytes: int = 2**20
    replay_memory_bytes: int = 2**24
    replay_ttl_s: float = 300.0
