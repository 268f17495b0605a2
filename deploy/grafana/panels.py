"""The dashboard's rows of panels with their Prometheus queries. Values only.

Every expression is checked against a live `/metrics` by tests/observability. `$instance` are the
servers that were chosen, `$__rate_interval` is Grafana's.
"""

from dataclasses import dataclass
from typing import Literal

HERE = 'instance=~"$instance"'
_WINDOW = "[$__rate_interval]"

Kind = Literal["timeseries", "stat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """`queries`: an expression and how its series are named, each. `width` in 24ths of a row.

    `alert`: the alert whose entry in the runbook the panel links to.
    """

    title: str
    text: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    width: int = 8
    kind: Kind = "timeseries"
    stacked: bool = False
    threshold: float | None = None
    alert: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A line over all panels where `expression` has a value."""

    title: str
    expression: str
    color: str


def _of(name: str, *matchers: str) -> str:
    return f"{name}{{{','.join([HERE, *matchers])}}}"


def _by(labels: str, name: str, *matchers: str) -> str:
    return f"{_sum(labels)}({_of(name, *matchers)})"


def _rate(labels: str, name: str, *matchers: str) -> str:
    return f"{_sum(labels)}(rate({_of(name, *matchers)}{_WINDOW}))"


def _sum(labels: str) -> str:
    return f"sum by ({labels}) " if labels else "sum"


def _share(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def _quantile(share: float, name: str, *matchers: str) -> str:
    return f"histogram_quantile({share}, {_rate('le', f'{name}_bucket', *matchers)})"


def _quantiles(name: str, *matchers: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (_quantile(share, name, *matchers), f"p{share * 100:.0f}") for share in (0.5, 0.99)
    )


NOW = Row(
    title="Now",
    panels=(
        Panel(
            title="Pool held by sessions",
            text="Share of active blocks. Cached blocks do not count: they can be evicted at once.",
            unit="percentunit",
            queries=((_of("vllm:kv_cache_usage_perc"), "{{instance}}"),),
            width=4,
            kind="stat",
            threshold=0.9,
            alert="SessiondPoolNearlyFull",
        ),
        Panel(
            title="Turns that run",
            text="Turns in the running batch.",
            unit="short",
            queries=((_by("", "vllm:num_requests_running"), "running"),),
            width=4,
            kind="stat",
        ),
        Panel(
            title="Turns that wait",
            text="For a running slot or for blocks.",
            unit="short",
            queries=((_by("", "vllm:num_requests_waiting"), "waiting"),),
            width=4,
            kind="stat",
            alert="SessiondQueueGrowing",
        ),
        Panel(
            title="Open sockets",
            text="WebSocket connections.",
            unit="short",
            queries=((_by("", "sessiond_websocket_connections"), "sockets"),),
            width=4,
            kind="stat",
        ),
        Panel(
            title="Leaked blocks",
            text="Anything but 0 is a fault: run `sessiond doctor`.",
            unit="short",
            queries=((_by("", "sessiond_leaked_blocks"), "leaked"),),
            width=4,
            kind="stat",
            threshold=1,
            alert="SessiondLeakedBlocks",
        ),
        Panel(
            title="Engine restarts in an hour",
            text="Engine restarts after a loss.",
            unit="short",
            queries=((f"sum(increase({_of('sessiond_engine_restarts_total')}[1h]))", "restarts"),),
            width=4,
            kind="stat",
            threshold=1,
            alert="SessiondEngineRestarts",
        ),
    ),
)
MEMORY = Row(
    title="Memory",
    panels=(
        Panel(
            title="Pool by state",
            text="Blocks: of turns that run, of sessions between turns, cached, free.",
            unit="short",
            queries=(
                (_by("holder", "sessiond_kv_active_blocks"), "{{holder}}"),
                (
                    _by("state", "sessiond_kv_blocks", 'tier="device"', 'state!="active"'),
                    "{{state}}",
                ),
            ),
            stacked=True,
        ),
        Panel(
            title="Tokens by tier and state",
            text="Blocks are not tokens: a block may hold one token of sixteen, or be shared.",
            unit="short",
            queries=((_by("tier, state", "sessiond_kv_tokens"), "{{tier}} {{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Sessions by state",
            text="Sessions known to the engine, by state.",
            unit="short",
            queries=((_by("state", "sessiond_sessions"), "{{state}}"),),
            stacked=True,
        ),
        Panel(
            title="Tiers below the device",
            text="Blocks held by each tier, and its capacity.",
            unit="short",
            queries=(
                (_by("tier", "sessiond_kv_blocks", 'tier!="device"', 'state="cached"'), "{{tier}}"),
                (_by("tier", "sessiond_kv_blocks", 'tier!="device"'), "{{tier}} could"),
            ),
        ),
        Panel(
            title="KV per turn",
            text="KV held by a session at the end of its turn.",
            unit="bytes",
            queries=_quantiles("sessiond_turn_kv_bytes"),
        ),
        Panel(
            title="Empty slots",
            text="Share of held slots without a token.",
            unit="percentunit",
            queries=((_of("sessiond_internal_fragmentation_ratio"), "{{instance}}"),),
        ),
        Panel(
            title="Memory of the GPU",
            text="What the driver says is used (from DCGM's exporter, where there is a GPU) beside "
            "KV, also cached, in MiB. The pool is taken at start, so the first is level.",
            unit="mbytes",
            queries=(
                ("sum by (gpu) (DCGM_FI_DEV_FB_USED)", "GPU {{gpu}} used"),
                (
                    _share(_by("", "sessiond_kv_bytes", 'tier="device"'), "1048576"),
                    "KV",
                ),
            ),
            width=12,
        ),
        Panel(
            title="How full and how busy a GPU is",
            text="From DCGM's exporter. Full includes other processes; over 95 % is an alert.",
            unit="percentunit",
            queries=(
                (
                    _share("DCGM_FI_DEV_FB_USED", "(DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE)"),
                    "{{instance}} GPU {{gpu}} full",
                ),
                (
                    "DCGM_FI_DEV_GPU_UTIL / 100",
                    "{{instance}} GPU {{gpu}} busy",
                ),
            ),
            width=12,
            alert="SessiondGpuMemoryNearlyFull",
        ),
    ),
)
SPEED = Row(
    title="Speed",
    panels=(
        Panel(
            title="Time to first token, warm",
            text="Turns that reused cached KV.",
            unit="s",
            queries=_quantiles("sessiond_time_to_first_token_seconds", 'path="warm"'),
            alert="SessiondSlowFirstToken",
        ),
        Panel(
            title="Time to first token, cold",
            text="Of turns that found none.",
            unit="s",
            queries=_quantiles("sessiond_time_to_first_token_seconds", 'path="cold"'),
            alert="SessiondSlowFirstToken",
        ),
        Panel(
            title="Between tokens",
            text="Of turns in decode; tokens of one step share its time.",
            unit="s",
            queries=_quantiles("sessiond_inter_token_latency_seconds"),
            alert="SessiondSlowTokens",
        ),
        Panel(
            title="Queue",
            text="Running turns, and turns that wait for a running slot or for blocks.",
            unit="short",
            queries=(
                (_by("", "vllm:num_requests_running"), "running"),
                (_by("", "vllm:num_requests_waiting"), "waiting"),
            ),
            width=6,
        ),
        Panel(
            title="Time in the queue",
            text="Of turns that ended.",
            unit="s",
            queries=_quantiles("sessiond_queue_time_seconds"),
            width=6,
        ),
        Panel(
            title="Turns by how they end",
            text="Per second.",
            unit="ops",
            queries=((_rate("outcome", "sessiond_turns_total"), "{{outcome}}"),),
            width=6,
            stacked=True,
            alert="SessiondFailedTurns",
        ),
        Panel(
            title="Tokens",
            text="Per second: generated tokens and computed prompt tokens.",
            unit="short",
            queries=(
                (_rate("", "sessiond_generated_tokens_total"), "generated"),
                (
                    _rate("source", "sessiond_prefill_tokens_total", 'source=~"new|recomputed"'),
                    "prefill {{source}}",
                ),
            ),
            width=6,
        ),
        Panel(
            title="Whole turns",
            text="From arrival to ending.",
            unit="s",
            queries=_quantiles("sessiond_turn_duration_seconds"),
        ),
        Panel(
            title="Steps of the engine",
            text="A long step delays all turns.",
            unit="s",
            queries=_quantiles("sessiond_step_seconds"),
        ),
        Panel(
            title="Accepted draft tokens",
            text="Share of verified draft tokens that were accepted.",
            unit="percentunit",
            queries=(
                (
                    _share(
                        _rate("", "sessiond_draft_tokens_total", 'outcome="accepted"'),
                        _rate("", "sessiond_draft_tokens_total"),
                    ),
                    "accepted",
                ),
            ),
        ),
    ),
)
REUSE = Row(
    title="Reuse and pressure",
    panels=(
        Panel(
            title="Reuse ratio",
            text="Share of input tokens whose KV did not have to be computed.",
            unit="percentunit",
            queries=(
                (
                    _share(
                        _rate("", "sessiond_prefill_tokens_total", 'source=~"reused|restored"'),
                        _rate("", "sessiond_prefill_tokens_total"),
                    ),
                    "reused",
                ),
                (
                    _share(
                        _rate("", "vllm:prefix_cache_hits_total"),
                        _rate("", "vllm:prefix_cache_queries_total"),
                    ),
                    "found by prefix",
                ),
            ),
        ),
        Panel(
            title="Where input came from",
            text="Input tokens per second by the source of their KV.",
            unit="short",
            queries=((_rate("source", "sessiond_prefill_tokens_total"), "{{source}}"),),
            stacked=True,
        ),
        Panel(
            title="Swap",
            text="KV written to tiers (out) and read back (in).",
            unit="Bps",
            queries=(
                (_rate("direction, tier", "sessiond_swap_bytes_total"), "{{direction}} {{tier}}"),
            ),
            alert="SessiondSwapThrash",
        ),
        Panel(
            title="Evictions by policy",
            text="Idle sessions evicted per second: dropped (drop) or moved to a tier (swap).",
            unit="ops",
            queries=(
                (_rate("policy, action", "sessiond_evictions_total"), "{{policy}} {{action}}"),
            ),
        ),
        Panel(
            title="Degradations",
            text="Degradation steps per second.",
            unit="ops",
            queries=((_rate("step", "sessiond_degradations_total"), "{{step}}"),),
        ),
        Panel(
            title="Preemptions",
            text="Preempted turns per second, by what happens to their KV.",
            unit="ops",
            queries=((_rate("kind", "sessiond_preemptions_total"), "{{kind}}"),),
        ),
        Panel(
            title="Giving back",
            text="Time to trim or free a session's KV.",
            unit="s",
            queries=(
                *_quantiles("sessiond_reclaim_seconds"),
                (_quantile(0.99, "sessiond_swap_seconds"), "one move, p99"),
            ),
        ),
        Panel(
            title="What turns saw",
            text="Turns per second by what was dropped and the exactness of the KV.",
            unit="ops",
            queries=(
                (
                    _rate("context, fidelity", "sessiond_turn_contexts_total"),
                    "{{context}} {{fidelity}}",
                ),
            ),
        ),
        Panel(
            title="Refused by quota",
            text="Per second, by the limit.",
            unit="ops",
            queries=((_rate("reason", "sessiond_quota_rejections_total"), "{{reason}}"),),
            alert="SessiondQuotaRejections",
        ),
    ),
)
ROWS = (NOW, MEMORY, SPEED, REUSE)
_SERVERS = f"on (instance) {_of('sessiond_websocket_connections')}"
ANNOTATIONS = (
    Annotation(
        title="Server started",
        expression=f"changes({_of('process_start_time_seconds')}[1m]) > 0 and {_SERVERS}",
        color="blue",
    ),
    Annotation(
        title="Engine restarted",
        expression=f"increase({_of('sessiond_engine_restarts_total')}[1m]) > 0",
        color="red",
    ),
)
