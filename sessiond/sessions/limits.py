"""Bounds of the service: values only."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLimits:
    """Seconds and tokens.

    A `turn_timeout_s`, `queue_timeout_s` or `session_ttl_s` of 0 is none. `max_outstanding` counts
    turns that run or wait; `max_cold_contexts` the sessions without KV whose ids the engine still
    remembers. The watermarks say in pools how much KV turns that run or wait may want before a
    warning is logged, and before new ones are refused; 0: never.
    An engine may hang: `ask_timeout_s` bounds questions to it, `cancel_timeout_s` the wait for the
    end of a turn that it was told to stop. `summary_wait_s` bounds how long a turn waits for a
    summary, `background_summary_s` how long one is worked on that nobody waits for; there are
    `max_background_summaries` of these at a time. Every `heartbeat_s` a server tells others that
    it lives.
    What a turn has reserved of a quota is given back `reservation_s` after its server died; limits
    that another server has set are known after `quota_fresh_s`; residency is looked at every
    `residency_every_s`.
    What came of a request is found by its idempotency key for `idempotency_ttl_s`.
    What a turn has told is kept for those that come back: of one turn up to `replay_events` and
    `replay_event_bytes`; for `replay_ttl_s` after its end, of all turns that ended up to
    `replay_memory_bytes`.
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
