"""Messages between gateway and engine: commands down, events and answers up.

The engine knows ids (token ids, opaque session and turn ids) and nothing of users, SQL or wire. A
*context* is a session's committed token ids; the ids are the truth, the KV behind them a cache.
"""

from typing import Literal

import msgspec

from engine.ids import SessionId, TurnId
from engine.ipc.queries import RestoredFrom, TierInfo


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling parameters. `temperature` 0 is greedy; `top_k` 0 and `min_p` 0 are off.

    `repetition_penalty` divides positive logits of ids that the context has, and multiplies
    negative ones (CTRL, arXiv 1909.05858); 1 is off. `frequency_penalty` is subtracted for each
    time that the reply has an id, `presence_penalty` once if it has it at all; 0 is off.
    `logit_bias`: pairs of an id and what is added to its logit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Whether a sample depends on the tokens before it beyond its logits."""
        penalties = (self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        return penalties != (1.0, 0.0, 0.0)


# --- commands: one way, in order ------------------------------------------------------------


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """A `shifted` edit: the `dropped` spans were removed when a context had `at` ids.

    Spans [start, stop) index the ids visible at that time; they rise and do not touch.
    """

    at: int
    dropped: tuple[tuple[int, int], ...]


class SetContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open a session, or replace its ids. Computes nothing; KV of a common prefix stays.

    `ids` are all ids that the context ever held, in order; `edits` rise in `at` (which counts
    visible ids, after earlier edits). Without edits the context is exactly `ids`. `computed`: how
    many of `ids` had KV before, so that computing them again is reported as recomputed. `volatile`:
    never written to disk.
    """

    session: SessionId
    salt: bytes
    ids: list[int]
    computed: int = 0
    edits: tuple[Edit, ...] = ()
    volatile: bool = False


class EditContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Drop spans of an idle session's ids and keep the KV of the others (`shifted`)."""

    session: SessionId
    edit: Edit


class ParkContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Move the KV of an idle session to the tiers below the device, then release it."""

    session: SessionId


class HintContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Client hints about a session's future, for the placement policy.

    `ttl_s`: a return is expected within this time from now; None: unknown. `priority` as in turns:
    0 low, 1 normal, 2 high. Holds until the next hint.
    """

    session: SessionId
    ttl_s: float | None = None
    priority: int = 1


class RaisePriority(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Move the session's background turn, if it has one, to the foreground."""

    session: SessionId


class ForkContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Open `session` as the first `length` tokens of `parent`: blocks shared, tail copied.

    It is `volatile` if the parent is, or if this command says so.
    """

    session: SessionId
    parent: SessionId
    length: int
    volatile: bool = False


class TruncateContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Roll an idle session back to its first `length` tokens."""

    session: SessionId
    length: int


class ReleaseContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Free all KV of an idle session; its ids stay known."""

    session: SessionId


class CloseContext(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Free all KV and forget the session. A running turn is cancelled first.

    `erase`: KV of its ids that no other session holds is overwritten, and can't be hit any more.
    """

    session: SessionId
    erase: bool = False


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and weight of the owner of a turn's session (whose salt is its opaque key).

    `weight`: its share of a busy engine beside owners of weight 1. `priority`: 0 low, 1 normal, 2
    high. Limits for all its sessions together: `max_blocks` on the device, beside the engine's own
    setting, `max_host_bytes` and `max_disk_bytes` below it; None sets no limit.
    """

    weight: float = 1.0
    priority: int = 1
    max_blocks: int | None = None
    max_host_bytes: int | None = None
    max_disk_bytes: int | None = None


class SubmitTurn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Append `ids` to the session's context, then generate (unless `generate` is false).

    After the reply `close_ids` (end of turn, newline) are owed and join the context without being
    computed. A token of `stop_ids` ends the reply; it counts as output, is not text, and is not
    kept (the `close_ids` stand for it).

    `draft_ids`: likely first ids of the session's next turn. While nothing else runs, the engine
    computes the owed ids and these in advance. They change no reply, and no event or answer counts
    them.

    `background`: it has a share of each step, in a slot that no other turn wants and on blocks that
    no session holds. It is preempted as soon as another turn wants them. Without spare blocks it
    waits, and fails with `queue_full` when no other turn could free some. It does not count towards
    the limit of the queue, and ranks below all priorities until `RaisePriority`.
    """

    turn: TurnId
    session: SessionId
    ids: list[int]
    close_ids: list[int] = []
    stop_ids: list[int] = []
    draft_ids: list[int] = []
    sampling: Sampling = Sampling()
    max_output_tokens: int = 1
    generate: bool = True
    background: bool = False
    terms: Terms = Terms()


class CancelTurn(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Stop a queued or running turn within one step. Ignored for unknown and ended turns.

    `keep` true leaves the partial reply in the context: exactly the ids whose text was sent, then
    `close_ids`. False rolls the session back to its state before the turn.
    """

    turn: TurnId
    keep: bool
    reason: Literal["cancelled", "deadline", "queue_timeout", "disconnected"] = "cancelled"


ContextCommand = (
    SetContext
    | ForkContext
    | TruncateContext
    | ReleaseContext
    | CloseContext
    | EditContext
    | ParkContext
    | HintContext
    | RaisePriority
)
Command = ContextCommand | SubmitTurn | CancelTurn

# --- events of a turn: started at most once, exactly one ending ---------------------------------


class TurnStarted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The turn left the queue. reused + restored + recomputed + new = all tokens before the reply.

    `restored_from` names the slowest tier that KV came back from. `rebuilt_exact`: KV made by edits
    was lost and its history is too long to replay. The visible ids are recomputed as a context
    without edits, which it is from now on.
    """

    turn: TurnId
    reused_tokens: int
    restored_tokens: int = 0
    restored_from: RestoredFrom = "none"
    rebuilt_exact: bool = False
    recomputed_tokens: int
    new_tokens: int
    queue_ms: float


class TurnDelta(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """More text of the reply: whole characters, never a part of a stop string."""

    turn: TurnId
    text: str
    tokens: int


class TurnWaiting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The turn waits in the queue: at first, and when `cause` or `position` has changed.

    At most once a second. `cause`: no running slot is free, or it has to wait for blocks.
    `position`: its place in the order in which waiting turns should run, from 1. A preempted turn
    waits, too.
    """

    turn: TurnId
    cause: Literal["slot", "blocks"]
    position: int


Degradation = Literal["evict", "preempt", "limit_running", "shorten", "end_stream"]
DegradationReason = Literal["memory_pressure", "priority"]


class TurnDegraded(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """This turn is affected by others. Each step is reported once per turn at most.

    `reason`: memory is short, or a turn of a strictly higher priority has its slot or its blocks.

    `evict`: KV of its session was evicted. `preempt`: the turn is preempted and resumes later.
    `limit_running`: it waits because fewer turns may run. `shorten`: its reply will be cut;
    `end_stream`: it ends now.
    """

    turn: TurnId
    step: Degradation
    reason: DegradationReason = "memory_pressure"


class TurnCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Resources of a turn. Tokens; milliseconds; bytes and blocks held at its end.

    `rebuilt_exact` as in `TurnStarted`; if it is true here only, it happened during the reply,
    after the turn was preempted.
    """

    reused_tokens: int = 0
    restored_tokens: int = 0
    restored_from: RestoredFrom = "none"
    rebuilt_exact: bool = False
    recomputed_tokens: int = 0
    new_tokens: int = 0
    output_tokens: int = 0
    kv_bytes: int = 0
    blocks: int = 0
    queue_ms: float = 0.0
    ttft_ms: float | None = None
    total_ms: float = 0.0


class TurnDone(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reply is whole (a stop token or a stop string), or `generate` was false.

    `kept_ids` is what joined the context after the turn's own `ids`: reply, then `close_ids`.
    """

    turn: TurnId
    text: str
    kept_ids: list[int]
    counts: TurnCounts


class TurnIncomplete(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The reply was cut. `rolled_back`: the context is as before the turn, else as `TurnDone`."""

    turn: TurnId
    reason: Literal[
        "max_output_tokens",
        "cancelled",
        "deadline",
        "disconnected",
        "memory_pressure",
        "context_length",
    ]
    text: str
    kept_ids: list[int]
    rolled_back: bool
    counts: TurnCounts


class TurnFailed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The turn ended without an answer; the context is as before it."""

    turn: TurnId
    code: Literal[
        "request_too_large", "queue_full", "queue_timeout", "internal_error", "engine_restarted"
    ]
    message: str
    counts: TurnCounts


TurnEnding = TurnDone | TurnIncomplete | TurnFailed
TurnEvent = TurnWaiting | TurnStarted | TurnDelta | TurnDegraded | TurnEnding

# --- description of an engine ---------------------------------------------------------------


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Description of an engine. `pool_reason` explains the pool's size.

    `weights` names the formats of the weights in memory, `dtype` that of activations between
    layers, `kv_dtype` that of KV. `attention_reason` explains the choice of the attention backend.
    `activation_bytes` is the memory of the largest step, `free_bytes` the device's free memory
    after the weights were loaded. `shiftable`: whether `EditContext` and edits of `SetContext` are
    supported.
    """

    model: str
    architecture: str
    device: str
    weights: str
    dtype: str
    kv_dtype: str
    attention: str
    vocab_size: int
    max_model_len: int
    block_size: int
    total_blocks: int
    kv_bytes_per_token: int
    pool_bytes: int
    pool_reason: str
    weights_bytes: int
    activation_bytes: int
    free_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_num_waiting: int
    fingerprint: str
    attention_reason: str = ""
    shiftable: bool = True
    tiers: tuple[TierInfo, ...] = ()

    @property
    def arithmetic(self) -> str:
        """Arithmetic in use, as text."""
        return (
            f"weights {self.weights}, activations {self.dtype}, KV {self.kv_dtype}, "
            f"attention {self.attention} on {self.device}"
        )
