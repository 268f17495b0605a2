"""Frees blocks when the pool is short: asks the placement policy, applies its plan. Loop thread.

Keeps what a policy sees of a session beside its context: owner, turns, hints, and how often
sessions re-arrive.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.ipc.messages import Terms
from engine.kv.block_pool import BlockPool
from engine.kv.context import Activity, Context
from policies.laws import check_placement
from policies.lru import LeastRecentlyUsed
from policies.plan import PlacementAction, PlacementPlan, ReleaseKv, SwapOut
from policies.protocol import PlacementPolicy
from policies.views import (
    NOTHING_SEEN,
    ContextFacts,
    PlacementView,
    ReturnCounts,
    TurnKind,
    turn_kind,
)

_log = logging.getLogger(__name__)


_REFRESH_S = 30.0  # maximum age of the counts: deriving rates from them takes milliseconds
_MOST_WATCHED = 100_000  # beyond this all counts are halved, so that recent behaviour prevails
_MAX_ADVANCED = 256  # sessions per call: many more than one event adds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Placement policy and watermarks.

    Above `high_watermark` (a share of the pool that contexts hold) idle contexts are evicted before
    their blocks are needed. Every eviction frees down to `low_watermark`: each decision examines
    all contexts, and freeing block by block would swap all the time. `max_user_blocks`: limit for
    the sessions of one user together; 0 sets no limit.
    """

    name: str
    policy: PlacementPolicy
    low_watermark: float = 0.95
    high_watermark: float = 1.0
    max_user_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TierState:
    """Whether a tier takes KV, seconds per block to restore or recompute it, blocks in flight.

    `transferring_blocks` become available without an eviction: they are being written out.
    """

    swaps: bool = False
    restore_s: float = 0.0
    recompute_s: float = 1.0
    transferring_blocks: int = 0


class TierView(Protocol):
    """Interface to the tiers below the device."""

    def tier_state(self) -> TierState:
        """Current state of the tiers."""
        ...

    def stored_blocks(self, context: Context) -> int:
        """Number of a context's blocks that a tier has a copy of."""
        ...


class Eviction:
    """Owns the usage of sessions, and decides from it which contexts are evicted.

    `release` frees all KV of a context, `swap_out` does so once a tier has it.
    """

    def __init__(  # noqa: PLR0913 -- what is decided about, and who acts
        self,
        contexts: Mapping[SessionId, Context],
        *,
        pool: BlockPool,
        tiers: TierView,
        release: Callable[[Context], None],
        swap_out: Callable[[Context], None],
        config: PlacementConfig,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.usage = UsageBook(config.max_user_blocks)
        self._contexts = contexts
        self._pool = pool
        self._tiers = tiers
        self._release = release
        self._swap_out = swap_out
        self._config = config
        self._policy = config.policy
        self._counters = counters
        self._clock = clock
        self._arrivals = ReArrivalStats()

    # --- events of sessions ----------------------------------------------------------------------

    def note_turn(self, context: Context, new_tokens: int) -> None:
        """Record that a turn with this many new tokens was submitted."""
        self._arrivals.note_arrival(context.session, self._clock())
        self.usage.note_turn(context.session, new_tokens)

    def note_idle(self, context: Context) -> None:
        """Record that the session's turn has ended."""
        usage = self.usage.of(context.session)
        kind = turn_kind(usage.turns, usage.new_tokens)
        self._arrivals.note_idle(context.session, kind, self._clock())

    def forget(self, session: SessionId) -> None:
        """Record that the session has closed."""
        self._arrivals.forget(session)
        self.usage.forget(session)

    # --- shortage ------------------------------------------------------------------------------

    def take(self, count: int, receiver: Context) -> list[BlockId] | None:
        """Take blocks, evicting other contexts if needed; None when too few are available (yet).

        Blocks being written to a tier are about to be available: no context is evicted instead.
        """
        if self.usage.has_limits:
            self._make_room_for_user(count, receiver)
        pool = self._pool
        blocks = pool.try_take(count)
        if blocks is not None:
            return blocks
        offered = self._evictable(receiver)
        if pool.available_count + sum(context.table.block_count for context in offered) < count:
            return None  # nothing is evicted for a request that can't be met
        while blocks is None and offered:
            short = count - self._available_soon
            if short <= 0:
                return None
            offered = self._evict(max(short, self._above_low), offered)
            blocks = pool.try_take(count)
        return blocks

    def relieve(self) -> None:
        """Above the high watermark, evict idle contexts down to the low one.

        Contexts with a queued turn keep their KV: that turn will need it.
        """
        pool = self._pool
        if pool.total - self._available_soon <= self._config.high_watermark * pool.total:
            return
        idle = [context for context in self._evictable(None) if context.activity is Activity.IDLE]
        if idle:
            self._evict(max(1, self._above_low), idle)

    def _make_room_for_user(self, count: int, receiver: Context) -> None:
        owner = self.usage.of(receiver.session).owner
        most = self.usage.max_blocks(owner)
        if most is None:
            return
        contexts = self._contexts
        owned = [contexts[name] for name in self.usage.sessions_of(owner) if name in contexts]
        held = sum(context.table.block_count for context in owned)
        excess = held + count - most
        offered = [context for context in owned if _is_evictable(context, receiver)]
        if excess > 0 and offered:
            self._evict(excess, offered)

    @property
    def obtainable(self) -> int:
        """Blocks available now or shortly without preempting a running turn."""
        return self._available_soon + sum(
            context.table.block_count for context in self._evictable(None)
        )

    @property
    def _available_soon(self) -> int:
        return self._pool.available_count + self._tiers.tier_state().transferring_blocks

    @property
    def _above_low(self) -> int:
        total = self._pool.total
        return int(total - self._available_soon - self._config.low_watermark * total)

    def _evictable(self, receiver: Context | None) -> list[Context]:
        contexts = self._contexts.values()
        return [context for context in contexts if _is_evictable(context, receiver)]

    def _evict(self, needed: int, offered: Sequence[Context]) -> list[Context]:
        """Evict some of the contexts; return those that may still be evicted."""
        tiers = self._tiers.tier_state()
        now_s = self._clock()
        view = PlacementView(
            now_s=now_s,
            needed_blocks=needed,
            contexts=[self._context_facts(context) for context in offered],
            swaps=tiers.swaps,
            restore_s=tiers.restore_s,
            recompute_s=tiers.recompute_s,
            returns=self._arrivals.counts(now_s),
        )
        plan = self._plan(view)
        goal = self._available_soon + needed
        gone = set()
        for action in plan.actions:
            if self._available_soon >= goal:
                break
            self._apply(action)
            gone.add(action.session)
        return [context for context in offered if context.session not in gone]

    def _plan(self, view: PlacementView) -> PlacementPlan:
        try:
            plan = self._policy.plan(view)
            check_placement(view, plan)
        except Exception:
            # A policy may come from a plugin. Its failure must not stop turns.
            _log.exception("placement policy %s failed; lru is used instead", self._config.name)
            plan = LeastRecentlyUsed().plan(view)
        return plan

    def _apply(self, action: PlacementAction) -> None:
        context = self._contexts[SessionId(action.session)]
        context.was_evicted = True
        self._counters.degradations["evict"] += 1
        match action:
            case ReleaseKv():
                self._release(context)
                self._counters.evictions["drop"] += 1
            case SwapOut():
                self._swap_out(context)
                self._counters.evictions["swap"] += 1
            case _:
                assert_never(action)

    def _context_facts(self, context: Context) -> ContextFacts:
        pool, usage = self._pool, self.usage.of(context.session)
        blocks = context.table.blocks
        return ContextFacts(
            session=context.session,
            blocks=len(blocks),
            shared_blocks=sum(pool.references(block) > 1 for block in blocks),
            stored_blocks=self._tiers.stored_blocks(context),
            last_used_s=context.last_used_s,
            waiting=context.activity is Activity.WAITING,
            turns=usage.turns,
            new_tokens=usage.new_tokens,
            priority=usage.priority,
            expected_until_s=usage.expected_until_s(context.last_used_s),
        )


def _is_evictable(context: Context, receiver: Context | None) -> bool:
    # KV that a step writes or is about to read must stay in place.
    return (
        context.activity is not Activity.RUNNING
        and context is not receiver
        and context.table.block_count > 0
    )


@dataclass(slots=True)
class Usage:
    """Usage of one session. `owner` is its salt: the same for all sessions of a user.

    `turns` were submitted since the engine knows the session, the last with `new_tokens`.
    """

    owner: bytes
    turns: int = 0
    new_tokens: int = 0
    priority: int = 1
    ttl_s: float | None = None
    hinted_s: float = 0.0

    def expected_until_s(self, last_used_s: float) -> float | None:
        """Time until which a return is expected: the last use or hint, plus the time to live."""
        return None if self.ttl_s is None else max(self.hinted_s, last_used_s) + self.ttl_s


class UsageBook:
    """Usage by session; sessions and limits by owner.

    `max_user_blocks`: limit for the sessions of every owner together; 0 sets no limit.
    """

    def __init__(self, max_user_blocks: int = 0) -> None:
        self._max_user_blocks = max_user_blocks
        self._max_blocks: dict[bytes, int] = {}
        self._of: dict[SessionId, Usage] = {}
        self._owned: dict[bytes, set[SessionId]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def of(self, session: SessionId) -> Usage:
        """Usage of an open session."""
        return self._of[session]

    def sessions_of(self, owner: bytes) -> set[SessionId]:
        """All sessions of a user."""
        return self._owned.get(owner, set())

    def set_limits(self, session: SessionId, terms: Terms) -> None:
        """Set the block limit of a session's owner."""
        owner = self._of[session].owner
        if terms.max_blocks is None:
            self._max_blocks.pop(owner, None)
        else:
            self._max_blocks[owner] = terms.max_blocks

    @property
    def has_limits(self) -> bool:
        """Whether any owner has a limit."""
        return self._max_user_blocks > 0 or bool(self._max_blocks)

    def max_blocks(self, owner: bytes) -> int | None:
        """Limit for the owner's sessions together; None: no limit."""
        own = self._max_blocks.get(owner)
        if not self._max_user_blocks:
            return own
        return self._max_user_blocks if own is None else min(own, self._max_user_blocks)

    def open(self, session: SessionId, owner: bytes) -> None:
        """Add a session. Known usage is kept unless the owner has changed."""
        known = self._of.get(session)
        if known is None or known.owner != owner:
            self.forget(session)
            self._of[session] = Usage(owner)
            self._owned.setdefault(owner, set()).add(session)

    def fork(self, parent: SessionId, session: SessionId) -> None:
        """Add a session that continues another's turns. Hints are not inherited."""
        seen = self._of[parent]
        self.open(session, seen.owner)
        self._of[session].turns = seen.turns
        self._of[session].new_tokens = seen.new_tokens

    def note_turn(self, session: SessionId, new_tokens: int) -> None:
        """Record a submitted turn."""
        usage = self._of[session]
        usage.turns += 1
        usage.new_tokens = new_tokens

    def hint(self, session: SessionId, *, ttl_s: float | None, priority: int, now_s: float) -> None:
        """Replace a session's hints. Ignored for unknown sessions."""
        usage = self._of.get(session)
        if usage is not None:
            usage.ttl_s, usage.priority, usage.hinted_s = ttl_s, priority, now_s

    def forget(self, session: SessionId) -> None:
        """Remove a closed session."""
        usage = self._of.pop(session, None)
        if usage is None:
            return
        owned = self._owned[usage.owner]
        owned.discard(session)
        if not owned:
            del self._owned[usage.owner]
            self._max_blocks.pop(usage.owner, None)


@dataclass(frozen=True, slots=True)
class _Idle:
    since_s: float
    kind: TurnKind


class ReArrivalStats:
    """Tracks idle sessions through the spans of `ages_s`.

    Sessions of one span are in order of the time they became idle, so those that have left it are
    at the front. A session that closes counts neither as returned nor as idle.
    """

    def __init__(self, ages_s: Sequence[float] = NOTHING_SEEN.ages_s) -> None:
        self._ages_s = ages_s
        self._in_span: list[OrderedDict[SessionId, _Idle]] = [OrderedDict() for _ in ages_s]
        self._span_of: dict[SessionId, int] = {}
        self._watched: dict[TurnKind, list[int]] = {}
        self._returned: dict[TurnKind, list[int]] = {}
        self._total = 0
        self._counts = NOTHING_SEEN
        self._counted_s: float | None = None

    def note_idle(self, session: SessionId, kind: TurnKind, now_s: float) -> None:
        """Record that a turn has ended."""
        self.forget(session)
        self._in_span[0][session] = _Idle(now_s, kind)
        self._span_of[session] = 0

    def note_arrival(self, session: SessionId, now_s: float) -> None:
        """Record that the session's next turn has arrived."""
        self._advance(now_s)
        span = self._span_of.pop(session, None)
        if span is None:
            return
        idle = self._in_span[span].pop(session)
        while now_s - idle.since_s >= self._ages_s[span]:  # spans that `_advance` has not reached
            self._row(self._watched, idle.kind)[span] += 1
            span += 1
            if span == len(self._ages_s):
                return
        self._row(self._watched, idle.kind)[span] += 1
        self._row(self._returned, idle.kind)[span] += 1

    def forget(self, session: SessionId) -> None:
        """Remove a closed session. Nothing happens if it was not idle."""
        span = self._span_of.pop(session, None)
        if span is not None:
            del self._in_span[span][session]

    def counts(self, now_s: float) -> ReturnCounts:
        """Counts, at most `_REFRESH_S` old."""
        if self._counted_s is None or now_s - self._counted_s >= _REFRESH_S:
            self._advance(now_s)
            if self._total > _MOST_WATCHED:
                self._halve()
            self._counted_s = now_s
            self._counts = ReturnCounts(
                ages_s=self._ages_s,
                watched={kind: tuple(row) for kind, row in self._watched.items()},
                returned={kind: tuple(row) for kind, row in self._returned.items()},
            )
        return self._counts

    def _advance(self, now_s: float) -> None:
        """Move a bounded number of sessions to their current spans: many may be due at once."""
        last, left = len(self._ages_s) - 1, _MAX_ADVANCED
        for span, (sessions, end_s) in enumerate(zip(self._in_span, self._ages_s, strict=True)):
            while sessions and left:
                session, idle = next(iter(sessions.items()))
                if now_s - idle.since_s < end_s:
                    break
                left -= 1
                del sessions[session]
                self._row(self._watched, idle.kind)[span] += 1
                if span < last:
                    self._in_span[span + 1][session] = idle
                    self._span_of[session] = span + 1
                else:
                    del self._span_of[session]

    def _row(self, rows: dict[TurnKind, list[int]], kind: TurnKind) -> list[int]:
        self._total += 1
        return rows.setdefault(kind, [0] * len(self._ages_s))

    def _halve(self) -> None:
        self._total //= 2
        for rows in (self._watched, self._returned):
            for kind, row in rows.items():
                rows[kind] = [count // 2 for count in row]
