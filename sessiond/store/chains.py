"""SQL of ancestor chains: a turn, the turn it was built on, and so on to the first."""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.records import StoredContext
from sessiond.store.schema import system_prompts, turns
from sessiond.store.token_ids import ID_BYTES, unpack

# What an engine said it had before the reply: nothing of a turn that no engine worked on.
_SEEN_TOKENS = (
    turns.c.reused_tokens + turns.c.restored_tokens + turns.c.recomputed_tokens + turns.c.new_tokens
)


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


async def context(
    connection: AsyncConnection, user_id: str, prompt_id: str, tip_id: str | None
) -> StoredContext:
    """All ids of a context: its front, then what each turn added.

    The last sampled token of a turn and what is owed after it are computed by the next turn.
    """
    front = await connection.scalar(
        sa.select(system_prompts.c.token_ids).where(
            system_prompts.c.id == prompt_id, system_prompts.c.user_id == user_id
        )
    )
    chain = chain_of(user_id, tip_id)
    rows = await connection.execute(
        sa.select(turns.c.input_ids, turns.c.reply_ids, _SEEN_TOKENS, turns.c.output_tokens)
        .join(chain, chain.c.id == turns.c.id)
        .order_by(chain.c.depth.desc())
    )
    parts = [front or b""]
    length = len(parts[0])
    computed = 0
    for input_ids, stored_reply, seen_tokens, output_tokens in rows:
        reply = stored_reply or b""
        length += len(input_ids)
        if seen_tokens:
            fed = max(0, output_tokens - 1) * ID_BYTES
            computed = length + min(fed, len(reply))
        length += len(reply)
        parts += [input_ids, reply]
    return StoredContext(ids=unpack(parts), computed=computed // ID_BYTES)


async def is_in_chain(
    connection: AsyncConnection, user_id: str, turn_id: str, tip_id: str | None
) -> bool:
    """Whether `turn_id` is the tip or an ancestor of it."""
    chain = chain_of(user_id, tip_id)
    found = await connection.scalar(sa.select(chain.c.id).where(chain.c.id == turn_id))
    return found is not None
