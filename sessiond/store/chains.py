"""SQL of ancestor chains: a turn, the turn it was built on, and so on to the first."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.schema import system_prompts, turns
from sessiond.store.token_ids import unpack


def chain_of(user_id: str, tip_id: str | None) -> sa.CTE:
    """Columns `id` and `depth` (0 at the tip, growing towards the first turn)."""
    tip = (
        sa.select(turns.c.id, turns.c.parent_id, sa.literal(0).label("depth"))
        .where(turns.c.id == tip_id, turns.c.user_id == user_id)
        .cte("chain", recursive=True)
    )
    return tip.union_all(
        sa.select(turns.c.id, turns.c.parent_id, tip.c.depth + 1).join(
            tip, turns.c.id == tip.c.parent_id
        )
    )


async def context_ids(
    connection: AsyncConnection, user_id: str, prompt_id: str, tip_id: str | None
) -> list[int]:
    """All ids of a context: its front, then what each turn added."""
    front = await connection.scalar(
        sa.select(system_prompts.c.token_ids).where(
            system_prompts.c.id == prompt_id, system_prompts.c.user_id == user_id
        )
    )
    chain = chain_of(user_id, tip_id)
    rows = await connection.execute(
        sa.select(turns.c.input_ids, turns.c.reply_ids)
        .join(chain, chain.c.id == turns.c.id)
        .order_by(chain.c.depth.desc())
    )
    parts = [front or b""]
    for input_ids, reply_ids in rows:
        parts += [input_ids, reply_ids or b""]
    return unpack(parts)


async def is_in_chain(
    connection: AsyncConnection, user_id: str, turn_id: str, tip_id: str | None
) -> bool:
    """Whether `turn_id` is the tip or an ancestor of it."""
    chain = chain_of(user_id, tip_id)
    found = await connection.scalar(sa.select(chain.c.id).where(chain.c.id == turn_id))
    return found is not None
