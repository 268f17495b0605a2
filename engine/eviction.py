"""Frees blocks when the pool is short, as the placement policy plans. Loop thread only."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from engine.context import Activity, Context
from engine.counters import Counters
from engine.ids import BlockId, SessionId
from engine.memory.block_pool import BlockPool
from engine.returns import ReturnStatistics
from engine.usage import UsageBook
from policies.laws import check_placement
from policies.lru import LeastRecentlyUsed
from policies.plan import PlacementAction, PlacementPlan, ReleaseKv, SwapOut
from policies.protocol import PlacementPolicy
from policies.returns import turn_kind
from policies.views import ContextFacts, PlacementView

_log = logging.getLogger(__name__)


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
class TierFacts:
    """Whether a tier takes KV, seconds per block to restore or recompute it, blocks in flight.

    `moving_blocks` become available without an eviction: they are being written out.
    """

    swaps: bool = False
    restore_s: float = 0.0
    recompute_s: float = 1.0
    moving_blocks: int = 0


class TierView(Protocol):
    """Interface to the tiers below the device."""

    def facts(self) -> TierFacts:
        """Current state of the tiers."""
        ...

    def stored_blocks(self, context: Context) -> int:
        """Number of a context's blocks that a tier has a copy of."""
        ...


class Holder(Protocol):
    """Interface to the owner of the contexts."""

    contexts: dict[SessionId, Context]
    pool: BlockPool

    @property
    def movement(self) -> TierView:
        """KV transfer to the tiers below the device."""
        ...

    def release(self, context: Context) -> None:
        """Free all KV of a context."""
        ...

    def swap_out(self, context: Context) -> None:
        """Free all KV of a context once a tier has it."""
        ...


class Eviction:
    """Owns the usage of sessions, and decides from it which contexts are evicted."""

    def __init__(
        self,
        holder: Holder,
        *,
        config: PlacementConfig,
        counters: Counters,
        clock: Callable[[], float],
    ) -> None:
        self.usage = UsageBook(config.max_user_blocks)
        self._holder = holder
        self._config = config
        self._counters = counters
        self._clock = clock
        self._returns = ReturnStatistics()

    # --- events of sessions ----------------------------------------------------------------------

    def note_turn(self, context: Context, new_tokens: int) -> None:
        """Record that a turn with this many new tokens was submitted."""
        self._returns.note_return(context.session, self._clock())
        self.usage.note_turn(context.session, new_tokens)

    def note_idle(self, context: Context) -> None:
        """Record that the session's turn has ended."""
        usage = self.usage.of(context.session)
        kind = turn_kind(usage.turns, usage.new_tokens)
        self._returns.note_idle(context.session, kind, self._clock())

    def forget(self, session: SessionId) -> None:
        """Record that the session has closed."""
        self._returns.forget(session)
        self.usage.forget(session)

    # --- shortage ------------------------------------------------------------------------------

    def take(self, count: int, receiver: Context) -> list[BlockId] | None:
        """Take blocks, evicting other contexts if needed; None when not enough can be had (yet).

        Blocks that are being written to a tier are waited for: nothing else is evicted for them.
        """
        if self.usage.has_limits:
            self._make_room_for_user(count, receiver)
        pool = self._holder.pool
        blocks = pool.try_take(count)
        if blocks is not None:
            return blocks
        offered = self._offered(receiver)
        if pool.available_count + sum(context.table.block_count for context in offered) < count:
            return None  # nothing is evicted for a request that can't be met
        while blocks is None and offered:
            short = count - self._coming
            if short <= 0:
                return None
            offered = self._evict(max(short, self._above_low), offered)
            blocks = pool.try_take(count)
        return blocks

    def relieve(self) -> None:
        """Above the high watermark, evict idle contexts down to the low one.

        Queued ones keep their KV: the blocks are not needed yet, and their turns are the next to
        run.
        """
        pool = self._holder.pool
        if pool.total - self._coming <= self._config.high_watermark * pool.total:
            return
        idle = [context for context in self._offered(None) if context.activity is Activity.IDLE]
        if idle:
            self._evict(max(1, self._above_low), idle)

    def _make_room_for_user(self, count: int, receiver: Context) -> None:
        owner = self.usage.of(receiver.session).owner
        most = self.usage.max_blocks(owner)
        if most is None:
            return
        contexts = self._holder.contexts
        owned = [contexts[name] for name in self.usage.sessions_of(owner) if name in contexts]
        held = sum(context.table.block_count for context in owned)
        excess = held + count - most
        offered = [context for context in owned if _may_give_way(context, receiver)]
        if excess > 0 and offered:
            self._evict(excess, offered)

    @property
    def obtainable(self) -> int:
        """Blocks available now or shortly without preempting a running turn."""
        return self._coming + sum(context.table.block_count for context in self._offered(None))

    @property
    def _coming(self) -> int:
        return self._holder.pool.available_count + self._holder.movement.facts().moving_blocks

    @property
    def _above_low(self) -> int:
        total = self._holder.pool.total
        return int(total - self._coming - self._config.low_watermark * total)

    def _offered(self, receiver: Context | None) -> list[Context]:
        contexts = self._holder.contexts.values()
        return [context for context in contexts if _may_give_way(context, receiver)]

    def _evict(self, needed: int, offered: Sequence[Context]) -> list[Context]:
        """Evict some of the contexts; return those that may still be evicted."""
        tiers = self._holder.movement.facts()
        now_s = self._clock()
        view = PlacementView(
            now_s=now_s,
            needed_blocks=needed,
            contexts=[self._facts(context) for context in offered],
            swaps=tiers.swaps,
            restore_s=tiers.restore_s,
            recompute_s=tiers.recompute_s,
            returns=self._returns.counts(now_s),
        )
        plan = self._plan(view)
        goal = self._coming + needed
        gone = set()
        for action in plan.actions:
            if self._coming >= goal:
                break
            self._apply(action)
            gone.add(action.session)
        return [context for context in offered if context.session not in gone]

    def _plan(self, view: PlacementView) -> PlacementPlan:
        try:
            plan = self._config.policy.plan(view)
            check_placement(view, plan)
        except Exception:
            # A policy may come from a plugin. Turns must go on whatever it does.
            _log.exception("placement policy %s failed; lru decides instead", self._config.name)
            plan = LeastRecentlyUsed().plan(view)
        return plan

    def _apply(self, action: PlacementAction) -> None:
        context = self._holder.contexts[SessionId(action.session)]
        context.gave_way = True
        self._counters.degradations["evict"] += 1
        match action:
            case ReleaseKv():
                self._holder.release(context)
                self._counters.evictions["drop"] += 1
            case SwapOut():
                self._holder.swap_out(context)
                self._counters.evictions["swap"] += 1
            case _:
                assert_never(action)

    def _facts(self, context: Context) -> ContextFacts:
        pool, usage = self._holder.pool, self.usage.of(context.session)
        blocks = context.table.blocks
        return ContextFacts(
            session=context.session,
            blocks=len(blocks),
            shared_blocks=sum(pool.references(block) > 1 for block in blocks),
            stored_blocks=self._holder.movement.stored_blocks(context),
            last_used_s=context.last_used_s,
            waiting=context.activity is Activity.WAITING,
            turns=usage.turns,
            new_tokens=usage.new_tokens,
            priority=usage.priority,
            expected_until_s=usage.expected_until_s(context.last_used_s),
        )


def _may_give_way(context: Context, receiver: Context | None) -> bool:
    # KV that a step writes or is about to read must stay in place.
    return (
        context.activity is not Activity.RUNNING
        and context is not receiver
        and context.table.block_count > 0
    )
