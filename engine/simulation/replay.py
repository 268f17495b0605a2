"""Replays requests through the real pool, prefix cache and placement policies, with a null model.

A trace's block is one block of the pool, and its id is the block's only token. All code that
decides about memory runs as in an engine; nothing is computed.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.kv.context import Activity, Context
from engine.kv.eviction import PlacementConfig
from engine.kv.executor import Executor
from engine.kv.tiers.tiers import no_tiers
from engine.simulation.hints import Cut
from engine.simulation.trace import Request
from policies.protocol import PlacementPolicy
from policies.views import NOTHING_SEEN

_TICK_S = 1e-6


@dataclass(slots=True)
class ReplayStats:
    """Results of a replay. `returned_blocks` were evicted and needed again."""

    requests: int = 0
    lookups: int = 0
    hits: int = 0
    refused: int = 0
    returned_blocks: int = 0
    evictions: int = 0
    most_sessions: int = 0


@dataclass(slots=True)
class _Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class _Silent:
    """Sessions in order of their last request, to forget those that are silent for too long."""

    order: deque[tuple[float, SessionId]] = field(default_factory=deque)
    last_s: dict[SessionId, float] = field(default_factory=dict)

    def note(self, session: SessionId, now_s: float) -> None:
        self.last_s[session] = now_s
        self.order.append((now_s, session))

    def pop(self, before_s: float) -> SessionId | None:
        while self.order and self.order[0][0] <= before_s:
            at_s, session = self.order.popleft()
            if self.last_s.get(session) == at_s:
                del self.last_s[session]
                return session
        return None


class _Memory(Executor):
    """Records contexts that lost KV, so that empty ones can be dropped."""

    def __init__(self, capacity: int, config: PlacementConfig, clock: _Clock) -> None:
        self._emptied: list[SessionId] = []
        counters = Counters()
        self._evictions = counters.evictions
        super().__init__(
            num_blocks=capacity,
            block_size=1,
            fingerprint="simulation",
            caching=True,
            max_replay_tokens=0,
            copy_block=_copy_nothing,
            zero_block=_zero_nothing,
            placement=config,
            tiers=no_tiers(),
            counters=counters,
            clock=clock,
        )

    def release(self, context: Context) -> None:
        """Free all KV of a context."""
        super().release(context)
        self._emptied.append(context.session)

    @property
    def eviction_count(self) -> int:
        """Number of evictions so far."""
        return self._evictions.total()

    def take_emptied(self) -> list[SessionId]:
        """Return the sessions that lost their KV since the last call."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def drop(self, session: SessionId) -> None:
        """Remove a context, if it is open. Its usage is kept."""
        self.contexts.pop(session, None)

    def discard(self, blocks: Sequence[BlockId]) -> None:
        """Free unshared blocks on release instead of caching them."""
        for block in blocks:
            if self.pool.references(block) == 1 and self.pool.is_hashed(block):
                self.cache.forget(block)
                self.pool.unmark_hashed(block)


def _copy_nothing(_source: BlockId, _target: BlockId) -> None:
    pass  # blocks of one token are never written twice


def _zero_nothing(_block: BlockId) -> None:
    pass  # blocks have no contents


class TraceReplay:
    """One policy and one capacity."""

    def __init__(self, policy: PlacementPolicy, capacity: int) -> None:
        self.stats = ReplayStats()
        self._clock = _Clock()
        config = PlacementConfig(name="simulated", policy=policy)
        self._memory = _Memory(capacity, config, self._clock)
        self._silent = _Silent()

    def serve(self, request: Request, said: Sequence[Cut] = ()) -> None:
        """Run one request's turn, then apply the clients' hints."""
        # Traces have a resolution of seconds; the order of arrival must be kept.
        now_s = self._clock.now_s = max(request.at_s, self._clock.now_s + _TICK_S)
        session = SessionId(request.session)
        context = self._context(session, request.blocks)
        self._memory.note_turn(context, request.new_tokens, None)
        context.activity = Activity.RUNNING
        admitted = self._memory.try_admit(context, len(context.ids))
        self._count(request, context.table.kept_len, admitted=admitted)
        if admitted:
            self._compute(context)
        else:
            self._memory.release(context)
        context.activity = Activity.IDLE
        context.last_used_s = now_s
        self._memory.note_turn_end(context)
        self._silent.note(session, now_s)
        for cut in said:
            self._cut(cut)
        self._forget()

    def _context(self, session: SessionId, blocks: Sequence[int]) -> Context:
        contexts = self._memory.contexts
        if session not in contexts:
            self._memory.open(session, b"", [], 0)
        context = contexts[session]
        same = 0
        for one, other in zip(context.ids, blocks, strict=False):
            if one != other:
                break
            same += 1
        self._memory.cut(context, same)
        context.append(blocks[same:])
        return context

    def _compute(self, context: Context) -> None:
        pending = context.pending
        if pending:
            self._memory.begin(context, pending, None)
            self._memory.note_computed(context, pending)
        context.commit()

    def _count(self, request: Request, hits: int, *, admitted: bool) -> None:
        stats = self.stats
        stats.requests += 1
        stats.lookups += len(request.blocks)
        stats.hits += hits
        stats.refused += not admitted
        stats.returned_blocks += max(0, request.known_blocks - hits)
        stats.evictions = self._memory.eviction_count
        stats.most_sessions = max(stats.most_sessions, len(self._memory.usage))

    def _cut(self, cut: Cut) -> None:
        session = SessionId(cut.session)
        context = self._memory.context(session)
        if context is not None and cut.blocks < len(context.ids):
            if cut.dead:
                self._memory.discard(context.table.blocks[cut.blocks :])
            self._memory.cut(context, cut.blocks)
        if not cut.blocks:
            self._memory.drop(session)
            self._memory.forget_usage(session)

    def _forget(self) -> None:
        """Drop contexts without KV (a request has all its ids), and those silent for too long."""
        for session in self._memory.take_emptied():
            self._memory.drop(session)
            if session not in self._silent.last_s:
                self._memory.forget_usage(session)
        before_s = self._clock.now_s - NOTHING_SEEN.ages_s[-1]
        while (silent := self._silent.pop(before_s)) is not None:
            if silent not in self._memory.contexts:
                self._memory.forget_usage(silent)


def replay(
    requests: Iterable[Request],
    policy: PlacementPolicy,
    capacity: int,
    said: Mapping[int, Sequence[Cut]],
) -> ReplayStats:
    """Replay all requests; `said` has the clients' hints after each request, by its index."""
    run = TraceReplay(policy, capacity)
    for index, request in enumerate(requests):
        run.serve(request, said.get(index, ()))
    return run.stats
