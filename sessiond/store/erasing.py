"""SQL that deletes the rows of closed sessions.

Rows are shared: a fork continues turns of its parent session. Turns of a closed session stay as
long as an open session of the user continues them.

The search for deletable rows starts at the closed session or moved tip and walks up its ancestors,
so its cost depends on the number of deleted rows only.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import chains
from sessiond.store.records import StoredContext
from sessiond.store.schema import items, sessions, summaries, system_prompts, turns
from sessiond.store.text_padding import padded
from sessiond.store.token_ids import unpack

_DEAD_ENDS = 64  # blocks of older ones have been reused in a busy pool
_PARTS = 500  # ids in one statement: below every database's limit of parameters
_ROWS_AT_ONCE = 100  # expired session rows deleted with each close, so that they don't pile up
# Built once: each alias copies all columns, a thousand objects that refer to each other.
_CHILD, _PARENT = turns.alias("child"), turns.alias("parent")
_TIP, _OWNER = sessions.alias("tip"), sessions.alias("owner")
_TURN: tuple[sa.ColumnElement[Any], ...] = (
    turns.c.id,
    turns.c.parent_id,
    turns.c.session_id,
    turns.c.system_prompt_id,
    turns.c.summary_id,
)


@dataclass(slots=True)
class _Gone:
    """Ids of rows that deleted turns referred to; they may be unused now."""

    sessions: set[str] = field(default_factory=set)
    system_prefixes: set[str] = field(default_factory=set)
    summaries: set[str] = field(default_factory=set)

    def note(self, doomed: Iterable[sa.Row[*tuple[Any, ...]]]) -> None:
        for turn in doomed:
            self.sessions.add(turn.session_id)
            self.system_prefixes.add(turn.system_prompt_id)
            if turn.summary_id is not None:
                self.summaries.add(turn.summary_id)


async def erase(
    connection: AsyncConnection, user_id: str, session_id: str, now: float, keep_s: float
) -> None:
    """Delete text and token ids of a closed session, and rows that only it needed.

    The empty rows of deleted sessions stay until `keep_s` after their closing.
    """
    session = (
        await connection.execute(
            sa.select(sessions.c.tip_id, sessions.c.system_prompt_id).where(
                sessions.c.id == session_id,
                sessions.c.user_id == user_id,
                sessions.c.closed_at.is_not(None),
            )
        )
    ).one_or_none()
    gone = _Gone()
    if session is not None:
        doomed = await _doomed(connection, session_id)
        await connection.execute(
            sessions.update()
            .where(sessions.c.id == session_id)
            .values(metadata={}, tip_id=None, context_tokens=0)
        )
        gone.sessions.add(session_id)
        await _delete_upwards(connection, doomed, session.tip_id, gone)
    await _tidy(connection, user_id, gone, now, keep_s)


async def let_go(
    connection: AsyncConnection, user_id: str, tip_id: str | None, now: float, keep_s: float
) -> None:
    """Delete rows of closed sessions that only a former tip of a session needed."""
    gone = _Gone()
    await _delete_upwards(connection, (), tip_id, gone)
    if gone.sessions:
        await _tidy(connection, user_id, gone, now, keep_s)


async def dead_ends(
    connection: AsyncConnection, user_id: str, session_id: str, tip_id: str | None
) -> list[StoredContext]:
    """The newest branches that were computed for a session and are not in its context.

    They end in turns that were rewound, failed or cancelled. Ids of an aborted reply are unknown.
    """
    rows = await connection.execute(
        sa.select(
            turns.c.id,
            turns.c.parent_id,
            turns.c.system_prompt_id,
            turns.c.context_tokens,
            turns.c.input_ids,
        )
        .where(
            turns.c.session_id == session_id,
            turns.c.user_id == user_id,
            turns.c.id.is_distinct_from(tip_id),
            ~sa.exists().where(_CHILD.c.parent_id == turns.c.id),
        )
        .order_by(turns.c.created_at.desc(), turns.c.id.desc())
        .limit(_DEAD_ENDS)
    )
    found = []
    for row in rows.all():
        is_aborted = row.context_tokens is None
        last, system_prefix = row.parent_id if is_aborted else row.id, row.system_prompt_id
        stored = await chains.context(connection, user_id, system_prefix, last, None)
        ids = stored.ids + unpack([row.input_ids] if is_aborted else [])
        found.append(replace(stored, ids=ids))
    return found


def _is_tip() -> sa.Exists:
    """Whether the turn is the tip of an open session."""
    return sa.exists().where(_TIP.c.tip_id == turns.c.id, _TIP.c.closed_at.is_(None))


def _is_closed(session_id: sa.ColumnElement[str]) -> sa.Exists:
    return sa.exists().where(_OWNER.c.id == session_id, _OWNER.c.closed_at.is_not(None))


async def _doomed(
    connection: AsyncConnection, session_id: str
) -> Sequence[sa.Row[*tuple[Any, ...]]]:
    """Turns of a closed session that no other session needs."""
    has_other_child = sa.exists().where(
        _CHILD.c.parent_id == turns.c.id, _CHILD.c.session_id != session_id
    )
    needed = (
        sa.select(turns.c.id, turns.c.parent_id)
        .where(turns.c.session_id == session_id, sa.or_(has_other_child, _is_tip()))
        .cte("needed", recursive=True)
    )
    needed = needed.union(
        sa.select(_PARENT.c.id, _PARENT.c.parent_id)
        .join(needed, _PARENT.c.id == needed.c.parent_id)
        .where(_PARENT.c.session_id == session_id)
    )
    rows = await connection.execute(
        sa.select(*_TURN).where(
            turns.c.session_id == session_id, turns.c.id.not_in(sa.select(needed.c.id))
        )
    )
    return rows.all()


async def _delete_upwards(
    connection: AsyncConnection,
    doomed: Sequence[sa.Row[*tuple[Any, ...]]],
    tip_id: str | None,
    gone: _Gone,
) -> None:
    """Delete turns, then their ancestors and the tip's in closed sessions that nothing needs."""
    above = {tip_id}
    while True:
        await _delete(connection, [turn.id for turn in doomed])
        gone.note(doomed)
        above |= {turn.parent_id for turn in doomed}
        above -= {None, *(turn.id for turn in doomed)}
        doomed = await _lines(connection, [turn_id for turn_id in above if turn_id is not None])
        above = set()
        if not doomed:
            return


async def _lines(
    connection: AsyncConnection, ends: Sequence[str]
) -> list[sa.Row[*tuple[Any, ...]]]:
    """The turns and their ancestors up to the first that another turn or tip needs.

    Closed sessions only. Lines that meet stop below the common turn.
    """
    below = sa.exists().where(_CHILD.c.parent_id == turns.c.id)
    found: list[sa.Row[*tuple[Any, ...]]] = []
    for some in _in_parts(ends):
        line = (
            sa.select(*_TURN)
            .where(turns.c.id.in_(some), ~below, ~_is_tip(), _is_closed(turns.c.session_id))
            .cte("line", recursive=True)
        )
        line = line.union_all(
            sa.select(*_TURN)
            .join(line, turns.c.id == line.c.parent_id)
            .where(
                ~below.where(_CHILD.c.id != line.c.id), ~_is_tip(), _is_closed(turns.c.session_id)
            )
        )
        found += (await connection.execute(sa.select(line))).all()
    return found


async def _delete(connection: AsyncConnection, doomed: Sequence[str]) -> None:
    """Delete turns with their items and summaries, in batches.

    Parents are cleared first, so that no batch refers to another.
    """
    for some in _in_parts(doomed):
        await connection.execute(summaries.delete().where(summaries.c.turn_id.in_(some)))
        await connection.execute(items.delete().where(items.c.turn_id.in_(some)))
        await connection.execute(turns.update().where(turns.c.id.in_(some)).values(parent_id=None))
    for some in _in_parts(doomed):
        await connection.execute(turns.delete().where(turns.c.id.in_(some)))


async def _tidy(
    connection: AsyncConnection, user_id: str, gone: _Gone, now: float, keep_s: float
) -> None:
    """Delete unused summaries, expired session rows and unused system prefixes."""
    await _delete_unused_summaries(connection, gone)
    for some in _in_parts(sorted(gone.sessions)):
        await connection.execute(
            sessions.update()
            .where(sessions.c.id.in_(some), sessions.c.closed_at.is_not(None), *_bare())
            .values(forget_at=sessions.c.closed_at + keep_s)
        )
        gone.system_prefixes.update(
            await connection.scalars(
                sa.select(sessions.c.system_prompt_id).where(sessions.c.id.in_(some))
            )
        )
    gone.system_prefixes |= await _forget_rows(connection, user_id, now)
    await _delete_system_prefixes(connection, sorted(gone.system_prefixes))


async def _delete_unused_summaries(connection: AsyncConnection, gone: _Gone) -> None:
    used = sa.exists().where(turns.c.summary_id == summaries.c.id)
    is_unused = (_is_closed(summaries.c.session_id), ~used)
    for column, ids in (
        (summaries.c.session_id, sorted(gone.sessions)),
        (summaries.c.id, sorted(gone.summaries)),
    ):
        for some in _in_parts(ids):
            deleted = await connection.scalars(
                summaries.delete()
                .where(column.in_(some), *is_unused)
                .returning(summaries.c.session_id)
            )
            gone.sessions.update(deleted)


def _bare() -> tuple[sa.ColumnElement[bool], ...]:
    """Whether a session has no turns and no summaries."""
    return (
        ~sa.exists().where(turns.c.session_id == sessions.c.id),
        ~sa.exists().where(summaries.c.session_id == sessions.c.id),
    )


async def _forget_rows(connection: AsyncConnection, user_id: str, now: float) -> set[str]:
    """Delete some expired session rows of the user; returns their system prefixes."""
    due = (
        sa.select(sessions.c.id)
        .where(sessions.c.user_id == user_id, sessions.c.forget_at <= now, *_bare())
        .order_by(sessions.c.forget_at)
        .limit(_ROWS_AT_ONCE)
    )
    rows = await connection.scalars(
        sessions.delete().where(sessions.c.id.in_(due)).returning(sessions.c.system_prompt_id)
    )
    return set(rows)


async def _delete_system_prefixes(
    connection: AsyncConnection, system_prefixes: Sequence[str]
) -> None:
    """Delete system prefixes without a use; empty those that only closed sessions have."""
    by_turn = sa.exists().where(turns.c.system_prompt_id == system_prompts.c.id)
    by_session = sa.exists().where(sessions.c.system_prompt_id == system_prompts.c.id)
    by_open = sa.exists().where(
        sessions.c.system_prompt_id == system_prompts.c.id, sessions.c.closed_at.is_(None)
    )
    for some in _in_parts(system_prefixes):
        is_one = system_prompts.c.id.in_(some)
        await connection.execute(system_prompts.delete().where(is_one, ~by_turn, ~by_session))
        await connection.execute(
            system_prompts.update()
            .where(is_one, ~by_turn, ~by_open)
            .values(text=None, opening_text=None, token_ids=b"", tokens=0)
        )


def _in_parts(ids: Sequence[str]) -> list[list[str]]:
    return [padded(ids[at : at + _PARTS]) for at in range(0, len(ids), _PARTS)]
