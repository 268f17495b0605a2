"""SQL of summaries."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import usage
from sessiond.store.chains import chain_of
from sessiond.store.context_layout import SummaryRef
from sessiond.store.records import NewSummary, StoredSummary
from sessiond.store.schema import summaries, turns
from sessiond.store.token_ids import pack

_ADDED = turns.c.context_tokens - turns.c.start_tokens


async def insert(connection: AsyncConnection, summary: NewSummary) -> None:
    """Store a summary."""
    await connection.execute(
        summaries.insert().values(
            id=summary.id,
            user_id=summary.user_id,
            session_id=summary.session_id,
            turn_id=summary.turn_id,
            token_ids=pack(summary.token_ids),
            tokens=len(summary.token_ids),
            text=summary.text,
            input_tokens=summary.usage.input_tokens,
            cached_tokens=summary.usage.cached_tokens,
            output_tokens=summary.usage.output_tokens,
            created_at=summary.created_at,
        )
    )
    await usage.add(connection, summary.session_id, summary.usage)


async def newest(
    connection: AsyncConnection, user_id: str, tip_id: str | None
) -> StoredSummary | None:
    """The summary written from the longest part of a context; of equals the latest."""
    chain = chain_of(user_id, tip_id)
    row = (
        await connection.execute(
            sa.select(summaries.c.id, summaries.c.tokens, summaries.c.turn_id)
            .join(chain, chain.c.id == summaries.c.turn_id)
            .where(summaries.c.user_id == user_id)
            .order_by(chain.c.depth, summaries.c.created_at.desc(), summaries.c.id.desc())
            .limit(1)
        )
    ).one_or_none()
    if row is None:
        return None
    before = chain_of(user_id, row.turn_id)
    read = await connection.scalar(
        sa.select(sa.func.sum(_ADDED)).join(before, before.c.id == turns.c.id)
    )
    return StoredSummary(ref=SummaryRef(id=row.id, tokens=row.tokens), read_tokens=read or 0)


async def turn_ending_at(
    connection: AsyncConnection, user_id: str, tip_id: str, history_tokens: int
) -> str | None:
    """The last turn of a context's first `history_tokens`; None: no turn ends there."""
    chain = chain_of(user_id, tip_id)
    rows = await connection.execute(
        sa.select(turns.c.id, _ADDED.label("added_tokens"))
        .join(chain, chain.c.id == turns.c.id)
        .order_by(chain.c.depth.desc())
    )
    ending, tokens = None, 0
    for row in rows:
        tokens += row.added_tokens
        if tokens == history_tokens:
            ending = str(row.id)  # not the first match: later turns may add no tokens
    return ending
