"""SQL of the base of a new session: a turn or system prefix of another one, which may be deleted.

A lock on the user's row serialises transactions that build on the user's rows with those that
delete them, so that no base is deleted while a session is created on it.
"""

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store.errors import BaseGoneError
from sessiond.store.records import NewPrompt, NewSession
from sessiond.store.schema import system_prompts, turns, users


async def hold(
    connection: AsyncConnection, session: NewSession, new_prompt: NewPrompt | None
) -> None:
    """Lock the base of the session against deletion until the transaction ends.

    Raises:
        BaseGoneError: it was deleted.
    """
    if session.tip_id is not None:
        rows = sa.select(turns.c.id).where(
            turns.c.id == session.tip_id, turns.c.user_id == session.user_id
        )
    elif new_prompt is None or new_prompt.id != session.prompt_id:
        rows = sa.select(system_prompts.c.id).where(
            system_prompts.c.id == session.prompt_id,
            system_prompts.c.user_id == session.user_id,
            system_prompts.c.tokens == session.context_tokens,  # else it was emptied
        )
    else:
        return
    await connection.execute(_user(session.user_id).with_for_update(read=True))
    if await connection.scalar(rows) is None:
        raise BaseGoneError(f"the base of session {session.id} was deleted")


async def hold_all(connection: AsyncConnection, user_id: str) -> None:
    """Lock the user's rows against new sessions until the transaction ends."""
    await connection.execute(_user(user_id).with_for_update(key_share=True))


def _user(user_id: str) -> sa.Select[tuple[str]]:
    return sa.select(users.c.id).where(users.c.id == user_id)
