"""SQL of the tokens that sessions have used."""

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.domain import SessionUsage, TurnUsage
from sessiond.store.schema import sessions, summaries, turns
from sessiond.store.text_padding import padded

_SUMMED = ("turns", "input", "cached", "output")


async def add(
    connection: AsyncConnection,
    session_id: str | sa.ScalarSelect[str],
    usage: TurnUsage | None,
    *,
    begun: int = 0,
) -> None:
    """Count the usage of a turn or a summary, and `begun` turns, for their session."""
    more = {"usage_turns": begun}
    if usage is not None:
        more["usage_input"] = usage.input_tokens
        more["usage_cached"] = usage.cached_tokens
        more["usage_output"] = usage.output_tokens
    values = {name: sessions.c[name] + count for name, count in more.items() if count}
    if values:  # null stays null: see `summed`
        await connection.execute(
            sessions.update().where(sessions.c.id == session_id).values(**values)
        )


async def summed(
    connection: AsyncConnection, user_of: Mapping[str, str]
) -> dict[str, SessionUsage]:
    """Sums over all turns of sessions and the writing of their summaries.

    `user_of` maps their ids to their users. For sessions of an older version; others count.
    """
    cached = turns.c.reused_tokens + turns.c.restored_tokens
    computed = turns.c.recomputed_tokens + turns.c.new_tokens
    by_turns = sa.select(
        turns.c.session_id,
        turns.c.user_id,
        sa.literal(1).label("turns"),
        (cached + computed).label("input"),
        cached.label("cached"),
        turns.c.output_tokens.label("output"),
    ).where(turns.c.session_id.in_(padded(user_of)))
    by_summaries = sa.select(
        summaries.c.session_id,
        summaries.c.user_id,
        sa.literal(0),
        summaries.c.input_tokens,
        summaries.c.cached_tokens,
        summaries.c.output_tokens,
    ).where(summaries.c.session_id.in_(padded(user_of)))
    every = by_turns.union_all(by_summaries).subquery("every_row")
    sums = [sa.func.coalesce(sa.func.sum(every.c[name]), 0) for name in _SUMMED]
    rows = await connection.execute(
        sa.select(every.c.session_id, every.c.user_id, *sums).group_by(
            every.c.session_id, every.c.user_id
        )
    )
    found = {
        session_id: SessionUsage(
            turns=counts[0],
            input_tokens=counts[1],
            cached_tokens=counts[2],
            output_tokens=counts[3],
        )
        for session_id, user_id, *counts in rows
        if user_of[session_id] == user_id
    }
    return {session_id: found.get(session_id, SessionUsage()) for session_id in user_of}
