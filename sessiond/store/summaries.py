"""SQL of summaries."""

from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.records import NewSummary
from sessiond.store.schema import summaries
from sessiond.store.token_ids import pack


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
