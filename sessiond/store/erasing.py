"""SQL that deletes what closed sessions leave behind.

Rows are shared: a fork is built on turns of the session that it was cut from. So turns of a closed
session stay as long as an open session of the user has a turn or a tip that is built on them.
"""

from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import chains
from sessiond.store.padding import padded
from sessiond.store.records import StoredContext
from sessiond.store.schema import items, sessions, summaries, system_prompts, turns
from sessiond.store.token_ids import unpack

_DEAD_ENDS = 64  # a pool that is used has long taken the blocks of older ones
_PARTS = 500  # ids in one statement: fewer than any database's limit of parameters


async def erase(connection: AsyncConnection, user_id: str, before: float) -> None:
    """Delete text and token ids of the user's closed sessions that nothing is built on.

    Rows of sessions that were closed before `before`, in unix seconds, and have nothing left go,
    too; the others stay, empty.
    """
    doomed = await _doomed(connection, user_id)
    fronts = await _fronts(connection, user_id)
    for some in _in_parts(doomed):
        await connection.execute(summaries.delete().where(summaries.c.turn_id.in_(some)))
        await connection.execute(items.delete().where(items.c.turn_id.in_(some)))
    if doomed:
        await _cut_off(connection, doomed)
    await _delete_unused_summaries(connection, user_id)
    await _empty(connection, user_id, before)
    await _delete_fronts(connection, fronts)


async def dead_ends(
    connection: AsyncConnection, user_id: str, session_id: str, tip_id: str | None
) -> list[StoredContext]:
    """What was once computed for a session and is not in its context: the newest such branches.

    They end in turns that were rewound, failed or cancelled. Of a reply that was lost nothing is
    known.
    """
    child = turns.alias("child")
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
            ~sa.exists().where(child.c.parent_id == turns.c.id),
        )
        .order_by(turns.c.created_at.desc(), turns.c.id.desc())
        .limit(_DEAD_ENDS)
    )
    found = []
    for row in rows.all():
        is_lost = row.context_tokens is None
        last, front = row.parent_id if is_lost else row.id, row.system_prompt_id
        stored = await chains.context(connection, user_id, front, last, None)
        found.append(replace(stored, ids=stored.ids + unpack([row.input_ids] if is_lost else [])))
    return found


def _closed(user_id: str) -> sa.Select[tuple[str]]:
    return sa.select(sessions.c.id).where(
        sessions.c.user_id == user_id, sessions.c.closed_at.is_not(None)
    )


async def _doomed(connection: AsyncConnection, user_id: str) -> list[str]:
    """Turns of closed sessions that no open session is built on."""
    child, owner, tip = turns.alias("child"), sessions.alias("owner"), sessions.alias("tip")
    of_closed = turns.c.session_id.in_(_closed(user_id))
    has_open_child = sa.exists().where(
        child.c.parent_id == turns.c.id,
        owner.c.id == child.c.session_id,
        owner.c.closed_at.is_(None),
    )
    tips = sa.select(tip.c.tip_id).where(
        tip.c.user_id == user_id, tip.c.closed_at.is_(None), tip.c.tip_id.is_not(None)
    )
    needed = (
        sa.select(turns.c.id, turns.c.parent_id)
        .where(of_closed, sa.or_(has_open_child, turns.c.id.in_(tips)))
        .cte("needed", recursive=True)
    )
    parent = turns.alias("parent")
    needed = needed.union(
        sa.select(parent.c.id, parent.c.parent_id).join(needed, parent.c.id == needed.c.parent_id)
    )
    rows = await connection.scalars(
        sa.select(turns.c.id).where(of_closed, turns.c.id.not_in(sa.select(needed.c.id)))
    )
    return list(rows)


async def _fronts(connection: AsyncConnection, user_id: str) -> list[str]:
    """Fronts of closed sessions and their turns."""
    closed = _closed(user_id)
    rows = await connection.scalars(
        sa.union(
            sa.select(sessions.c.system_prompt_id).where(sessions.c.id.in_(closed)),
            sa.select(turns.c.system_prompt_id).where(turns.c.session_id.in_(closed)),
        )
    )
    return list(rows)


async def _cut_off(connection: AsyncConnection, doomed: list[str]) -> None:
    """Delete turns, in parts: so that no part points to another, they forget their parents."""
    for some in _in_parts(doomed):
        await connection.execute(turns.update().where(turns.c.id.in_(some)).values(parent_id=None))
    for some in _in_parts(doomed):
        await connection.execute(turns.delete().where(turns.c.id.in_(some)))


async def _delete_unused_summaries(connection: AsyncConnection, user_id: str) -> None:
    used = sa.exists().where(turns.c.summary_id == summaries.c.id)
    await connection.execute(
        summaries.delete().where(summaries.c.session_id.in_(_closed(user_id)), ~used)
    )


async def _empty(connection: AsyncConnection, user_id: str, before: float) -> None:
    """Leave nothing in the rows of closed sessions, or no row."""
    bare = sa.and_(
        ~sa.exists().where(turns.c.session_id == sessions.c.id),
        ~sa.exists().where(summaries.c.session_id == sessions.c.id),
    )
    await connection.execute(
        sessions.delete().where(sessions.c.user_id == user_id, sessions.c.closed_at <= before, bare)
    )
    await connection.execute(
        sessions.update()
        .where(sessions.c.user_id == user_id, sessions.c.closed_at.is_not(None))
        .values(metadata={}, tip_id=None, context_tokens=0)
    )


async def _delete_fronts(connection: AsyncConnection, fronts: list[str]) -> None:
    """Delete fronts that nothing uses; those that only closed sessions have are emptied."""
    by_turn = sa.exists().where(turns.c.system_prompt_id == system_prompts.c.id)
    by_session = sa.exists().where(sessions.c.system_prompt_id == system_prompts.c.id)
    by_open = sa.exists().where(
        sessions.c.system_prompt_id == system_prompts.c.id, sessions.c.closed_at.is_(None)
    )
    for some in _in_parts(fronts):
        are_these = system_prompts.c.id.in_(some)
        await connection.execute(system_prompts.delete().where(are_these, ~by_turn, ~by_session))
        await connection.execute(
            system_prompts.update()
            .where(are_these, ~by_turn, ~by_open)
            .values(text=None, opening_text=None, token_ids=b"", tokens=0)
        )


def _in_parts(ids: list[Any]) -> list[list[Any]]:
    return [padded(ids[at : at + _PARTS]) for at in range(0, len(ids), _PARTS)]
