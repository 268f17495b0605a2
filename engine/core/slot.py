"""A submitted turn, from the queue to its ending. Loop thread only."""

from engine.core.draft_budget import TurnDrafts
from engine.ipc.messages import Degradation, SubmitTurn, TurnCounts, TurnWaiting
from engine.ipc.queries import RestoredFrom
from engine.kv.context import Context
from engine.kv.step import SampleAt
from engine.kv.token_counts import TokenCounts
from engine.system.histogram import Histogram
from engine.text.detokenize import TextStream

_BACKGROUND = -1  # a priority below all classes


class Slot:
    """A turn's output so far, and its costs.

    `output` are the sampled ids without the stop token; `output_tokens` counts that too.
    `occurrences`: of ids in its context, if its sampling has penalties. `started_s` is None while
    the turn waits for its first step. `preemption_count` counts preemptions; `shortened`: its reply
    was limited below the requested length; `reported` are the degradation steps that were reported
    for it. `background`: it yields to all other turns, until `RunQueue.raise_priority`.
    """

    def __init__(
        self,
        *,
        command: SubmitTurn,
        context: Context,
        stream: TextStream,
        max_output_tokens: int,
        submitted_s: float,
    ) -> None:
        self.turn = command.turn
        self.command = command
        self.background = command.background
        self.context = context
        self.stream = stream
        self.max_output_tokens = max_output_tokens
        self.submitted_s = submitted_s
        self.prompt_len = len(context.ids)
        self.occurrences: TokenCounts | None = None
        if command.sampling.has_penalties:
            self.occurrences = TokenCounts(context.ids, uncounted=command.stop_ids)
        self.output: list[int] = []
        self.output_tokens = 0
        self.unsent_tokens = 0
        self.started_s: float | None = None
        self.first_token_s: float | None = None
        self._last_token_s = 0.0
        self.reused_tokens = 0
        self.restored_tokens = 0
        self.restored_from: RestoredFrom = "none"
        self.recomputed_tokens = 0
        self.preemption_count = 0
        self.shortened = False
        self.reported: set[Degradation] = set()
        self.reported_wait: TurnWaiting | None = None  # since it last ran
        self.wait_reported_s = 0.0
        self.turn_drafts: TurnDrafts | None = None  # from the second token on, where allowed

    @property
    def priority(self) -> int:
        """The class of its terms; below all of them in the background."""
        return _BACKGROUND if self.background else self.command.terms.priority

    @property
    def tokens_left(self) -> int:
        """How many more tokens the turn may sample."""
        return self.max_output_tokens - self.output_tokens

    @property
    def worst_case_blocks(self) -> int:
        """Blocks of the context after the turn at its greatest possible length."""
        replies = self.max_output_tokens if self.command.generate else 0
        tokens = self.prompt_len + replies + len(self.command.close_ids)
        return self.context.page_count(tokens)

    def sample(self, drafts: int) -> SampleAt:
        """Sampling of the next tokens, after a step's own ones and each of its drafts."""
        return SampleAt(
            sampling=self.command.sampling,
            output_index=self.output_tokens,
            drafts=drafts,
            counts=self.occurrences,
        )

    @property
    def new_tokens(self) -> int:
        """Tokens before the reply that were never computed before; 0 until the turn starts."""
        if self.started_s is None:
            return 0
        known = self.reused_tokens + self.restored_tokens + self.recomputed_tokens
        return self.prompt_len - known

    def start(self, now_s: float) -> None:
        """Record, once, the KV that was present when the turn left the queue."""
        context = self.context
        self.started_s = now_s
        kept = context.reusable_len
        # Idle prefill counts as computed by this turn: its reported cost must not depend on whether
        # the engine had idle time. Hits beyond it would have been hits without it, too.
        early = max(0, kept - context.computed_len) if kept <= context.idle_len else 0
        restored, self.restored_from = context.take_restored()
        self.restored_tokens = min(restored, kept - early)
        self.reused_tokens = kept - early - self.restored_tokens
        known = min(context.committed, context.computed_len)
        self.recomputed_tokens = max(0, known - kept + early)

    def drew(self, count: int, now_s: float, times: Histogram) -> None:
        """Record `count` sampled tokens; `times` gets the time per token since the last step.

        A turn's first token is not added: the time to it is reported on its own.
        """
        if self.first_token_s is None:
            self.first_token_s = now_s
        else:
            times.add((now_s - self._last_token_s) / count, count)
        self._last_token_s = now_s

    def counts(self, *, now_s: float, blocks: int, kv_bytes_per_block: int) -> TurnCounts:
        """Resources used up to now, with this number of blocks."""
        queued_until_s = now_s if self.started_s is None else self.started_s
        first_s = self.first_token_s
        return TurnCounts(
            reused_tokens=self.reused_tokens,
            restored_tokens=self.restored_tokens,
            restored_from=self.restored_from,
            rebuilt_exact=self.context.rebuilt_exact,
            recomputed_tokens=self.recomputed_tokens,
            new_tokens=self.new_tokens,
            output_tokens=self.output_tokens,
            kv_bytes=blocks * kv_bytes_per_block,
            blocks=blocks,
            queue_ms=1000 * (queued_until_s - self.submitted_s),
            ttft_ms=None if first_s is None else 1000 * (first_s - self.submitted_s),
            total_ms=1000 * (now_s - self.submitted_s),
        )
