"""SQL of ancestor chains: a turn, its parent, and so on to the first turn."""

from collections.abc import Collection, Iterable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from engine.ipc.messages import Edit
from sessiond.store.context_layout import (
    ContextLayout,
    Span,
    SummaryRef,
    TurnSize,
    VisibleSpans,
    dropped_places,
    layout_of,
)
from sessiond.store.records import StoredContext
from sessiond.store.schema import summaries, system_prompts, turns
from sessiond.store.text_padding import padded
from sessiond.store.token_ids import ID_BYTES, unpack

# Input tokens that the engine reported; 0 for a turn that no engine ran.
_SEEN_TOKENS = (
    turns.c.reused_tokens + turns.c.restored_tokens + turns.c.recomputed_tokens + turns.c.new_tokens
)
VIEW_SUMMARY_TOKENS = sa.func.coalesce(summaries.c.tokens, 0).label("view_summary_tokens")
_ADDED = turns.c.context_tokens - turns.c.start_tokens
# Columns that `size_of` reads; the query joins `summaries`.
SIZE_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    _ADDED.label("added_tokens"),
    turns.c.awaits_reply,
    turns.c.parts,
    turns.c.visible,
    turns.c.fidelity,
    turns.c.summary_id,
    VIEW_SUMMARY_TOKENS,
)


def chain_of(user_id: str, tip_id: str | None, until: str | None = None) -> sa.CTE:
    """Columns `id` and `depth` (0 at the tip, growing towards the first turn, or `until`)."""
    tip = (
        sa.select(turns.c.id, turns.c.parent_id, sa.literal(0).label("depth"))
        .where(turns.c.id == tip_id, turns.c.user_id == user_id)
        .cte("chain", recursive=True)
    )
    parents = sa.select(turns.c.id, turns.c.parent_id, tip.c.depth + 1).join(
        tip, turns.c.id == tip.c.parent_id
    )
    return tip.union_all(parents if until is None else parents.where(tip.c.id != until))


def newest_of(user_id: str, tip_id: str | None, count: int) -> sa.CTE:
    """As `chain_of`, of the newest `count` turns only."""
    tip = (
        sa.select(turns.c.id, turns.c.parent_id, sa.literal(0).label("depth"))
        .where(turns.c.id == tip_id, turns.c.user_id == user_id)
        .cte("chain", recursive=True)
    )
    return tip.union_all(
        sa.select(turns.c.id, turns.c.parent_id, tip.c.depth + 1)
        .join(tip, turns.c.id == tip.c.parent_id)
        .where(tip.c.depth < count - 1)
    )


async def history_tokens(connection: AsyncConnection, tip_id: str | None) -> int:
    """Token ids that all turns of a context have added, visible or not."""
    if tip_id is None:
        return 0
    return (await many_history_tokens(connection, [tip_id])).get(tip_id, 0)


async def many_history_tokens(connection: AsyncConnection, tips: Collection[str]) -> dict[str, int]:
    """As `history_tokens`, for several contexts of any users, by their tips."""
    columns = (turns.c.id, turns.c.parent_id, turns.c.history_tokens, _ADDED.label("added"))
    tip = (
        sa.select(turns.c.id.label("tip_id"), *columns)
        .where(turns.c.id.in_(padded(tips)))
        .cte("chains", recursive=True)
    )
    chains = tip.union_all(
        sa.select(tip.c.tip_id, *columns)
        .join(tip, turns.c.id == tip.c.parent_id)
        .where(tip.c.history_tokens.is_(None))
    )
    added = sa.func.sum(sa.func.coalesce(chains.c.history_tokens, chains.c.added))
    rows = await connection.execute(sa.select(chains.c.tip_id, added).group_by(chains.c.tip_id))
    return {tip_id: int(tokens or 0) for tip_id, tokens in rows}


async def seen_spans(
    connection: AsyncConnection, tip_id: str | None, history: int
) -> tuple[Span, ...]:
    """Visible spans of a context of `history` tokens; reads turns back to the last edit only."""
    kind = await connection.scalar(sa.select(turns.c.context).where(turns.c.id == tip_id))
    if kind is None or kind == "full":
        return (Span(0, history),)
    columns = (turns.c.id, turns.c.parent_id, turns.c.visible, _ADDED.label("added"))
    tip = sa.select(*columns).where(turns.c.id == tip_id).cte("since_edit", recursive=True)
    chain = tip.union_all(
        sa.select(*columns).join(tip, turns.c.id == tip.c.parent_id).where(tip.c.visible.is_(None))
    )
    rows = (await connection.execute(sa.select(chain.c.visible, chain.c.added))).all()
    edited = [Span(start, stop) for row in rows for start, stop in row.visible or ()]
    return (*edited, Span(history - sum(row.added for row in rows), history))


async def context(
    connection: AsyncConnection,
    user_id: str,
    prompt_id: str,
    tip_id: str | None,
    view: VisibleSpans | None,
) -> StoredContext:
    """The ids of a context as they are sent to an engine; see `StoredContext`.

    `view`: that of a turn that starts at the tip and is not stored yet. The last sampled token of a
    turn and the ids that close its reply are computed by the next turn.
    """
    system_prefix = await connection.scalar(
        sa.select(system_prompts.c.token_ids).where(
            system_prompts.c.id == prompt_id, system_prompts.c.user_id == user_id
        )
    )
    chain = chain_of(user_id, tip_id)
    columns = (turns.c.input_ids, turns.c.reply_ids, _SEEN_TOKENS.label("seen_tokens"))
    rows = await connection.execute(
        sa.select(*SIZE_COLUMNS, *columns, turns.c.output_tokens)
        .join(chain, chain.c.id == turns.c.id)
        .outerjoin(summaries, summaries.c.id == turns.c.summary_id)
        .order_by(chain.c.depth.desc())
    )
    held = _Held(unpack([system_prefix or b""]))
    for row in rows:
        held.add(row)
    if view is not None:
        held.apply(view)
    return held.context(await _summary_ids(connection, user_id, held.summary))


async def layout(
    connection: AsyncConnection, user_id: str, prefix_tokens: int, tip_id: str | None
) -> ContextLayout:
    """The layout of the same context, without its ids."""
    chain = chain_of(user_id, tip_id)
    rows = await connection.execute(
        sa.select(*SIZE_COLUMNS)
        .join(chain, chain.c.id == turns.c.id)
        .outerjoin(summaries, summaries.c.id == turns.c.summary_id)
        .order_by(chain.c.depth.desc())
    )
    return layout_of(prefix_tokens, map(size_of, rows))


async def covers(
    connection: AsyncConnection, user_id: str, turn_id: str, tip_id: str | None
) -> bool:
    """Whether the context at `tip_id` starts with the whole context after the turn.

    True if the turn is the tip, or an ancestor without an edit of the context since.
    """
    chain = chain_of(user_id, tip_id, until=turn_id)
    place = sa.select(chain.c.depth).where(chain.c.id == turn_id).scalar_subquery()
    later_views = (
        sa.select(sa.func.count())
        .select_from(chain.join(turns, turns.c.id == chain.c.id))
        .where(chain.c.depth < place, turns.c.visible.is_not(None))
        .scalar_subquery()
    )
    row = (await connection.execute(sa.select(place, later_views))).one()
    return row[0] is not None and row[1] == 0


async def contains(
    connection: AsyncConnection, user_id: str, turn_id: str, tip_id: str | None
) -> bool:
    """Whether the turn is the tip or an ancestor of it."""
    chain = chain_of(user_id, tip_id, until=turn_id)
    found = await connection.scalar(sa.select(chain.c.id).where(chain.c.id == turn_id))
    return found is not None


def size_of(row: sa.Row[*tuple[Any, ...]]) -> TurnSize:
    """The size of a turn, from a row with `SIZE_COLUMNS`."""
    return TurnSize(
        tokens=row.added_tokens,
        awaits_reply=row.awaits_reply,
        view=view_of(row),
        parts=tuple(row.parts or ()),
    )


def view_of(row: sa.Row[*tuple[Any, ...]]) -> VisibleSpans | None:
    """The view of a turn, if its row has one."""
    if row.visible is None:
        return None
    summary = SummaryRef(id=row.summary_id, tokens=row.view_summary_tokens)
    return VisibleSpans(
        spans=tuple(Span(start, stop) for start, stop in row.visible),
        fidelity=row.fidelity,
        summary=summary if row.summary_id is not None else None,
    )


async def _summary_ids(
    connection: AsyncConnection, user_id: str, summary: SummaryRef | None
) -> list[int]:
    if summary is None:
        return []
    stored = await connection.scalar(
        sa.select(summaries.c.token_ids).where(
            summaries.c.id == summary.id, summaries.c.user_id == user_id
        )
    )
    return unpack([stored or b""])


class _Held:
    """The context that an engine holds after the rows of a chain, added from the first on."""

    def __init__(self, system_prefix: list[int]) -> None:
        self._system_prefix = system_prefix
        self._history: list[int] = []
        self._computed: int | None = None  # history tokens; None: not even the system prefix
        self._layout = ContextLayout(prefix_tokens=len(system_prefix))
        self._base = self._layout  # at the last exact state
        self._edits: list[Edit] = []

    @property
    def summary(self) -> SummaryRef | None:
        """The summary in the context at its last exact state."""
        return self._base.summary

    def apply(self, view: VisibleSpans) -> None:
        """Apply the view of a turn: a new exact state, or an edit."""
        after = self._layout.seen(view)
        if view.fidelity == "exact":
            self._base, self._edits = after, []
        else:
            places = dropped_places(self._layout, after)
            self._edits.append(Edit(at=self._layout.tokens, dropped=places))
        self._layout = after

    def add(self, row: sa.Row[*tuple[Any, ...]]) -> None:
        """Add a turn with its ids."""
        size = size_of(row)
        if size.view is not None:
            self.apply(size.view)
        reply = row.reply_ids or b""
        ids = unpack([row.input_ids, reply])
        if row.seen_tokens:
            fed = min(max(0, row.output_tokens - 1), len(reply) // ID_BYTES)
            self._computed = len(self._history) + len(row.input_ids) // ID_BYTES + fed
        self._history += ids
        self._layout = self._layout.grown_by(size.parts, len(ids), awaits_reply=size.awaits_reply)

    def context(self, summary_ids: list[int]) -> StoredContext:
        """The context after the added turns."""
        since = self._base.history_tokens
        spans = [*self._base.turns, Span(since, len(self._history))]
        ids = [*self._system_prefix, *summary_ids, *_cut(self._history, spans)]
        computed = 0
        if self._computed is not None:
            computed = len(self._system_prefix) + len(summary_ids)
            computed += sum(max(0, min(stop, self._computed) - start) for start, stop in spans)
        return StoredContext(ids=ids, computed=computed, edits=tuple(self._edits))


def _cut(history: list[int], spans: Iterable[Span]) -> list[int]:
    return [token for start, stop in spans for token in history[start:stop]]
