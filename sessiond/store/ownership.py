"""SQL of session ownership: a session belongs to the replica that claimed it last."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.store import turns
from sessiond.store.errors import NotOwnerError
from sessiond.store.replicas import ReplicaId, is_alive
from sessiond.store.schema import is_running, sessions
from sessiond.store.schema import turns as turn_rows
from sessiond.store.text_padding import padded

_MOST_IDS = 500  # in one query


async def claim(  # noqa: PLR0913 -- replica, session, time and mode
    connection: AsyncConnection,
    replica: ReplicaId,
    user_id: str,
    session_id: str,
    now: float,
    *,
    dead_by: float,
    even_if_busy: bool,
) -> bool:
    """Claim an open session unless a live replica runs a turn in it; returns success.

    Running turns of a dead owner, whose lease had expired at `dead_by`, are marked as failed. The
    epoch increases only when the owner changes.
    """
    row = (
        await connection.execute(
            sa.select(sessions.c.owner, is_alive(sessions.c.owner, dead_by).label("owner_lives"))
            .where(
                sessions.c.id == session_id,
                sessions.c.user_id == user_id,
                sessions.c.closed_at.is_(None),
            )
            .with_for_update(of=sessions, key_share=True)
        )
    ).one_or_none()
    if row is None:
        return False
    if row.owner == replica.id:
        return True
    if row.owner_lives and not even_if_busy and await _has_running_turn(connection, session_id):
        return False
    if not row.owner_lives:
        await turns.fail_running(connection, now, session_id)
    await connection.execute(
        sessions.update()
        .where(sessions.c.id == session_id)
        .values(owner=replica.id, epoch=sessions.c.epoch + 1)
    )
    return True


async def hold(
    connection: AsyncConnection, replica: ReplicaId, user_id: str, session_id: str, epoch: int
) -> None:
    """Lock the ownership of the session until the transaction ends.

    Raises:
        NotOwnerError: the session is closed, or another replica has claimed it since `epoch`.
    """
    held = await connection.scalar(
        sa.select(sessions.c.id)
        .where(
            sessions.c.id == session_id,
            sessions.c.user_id == user_id,
            sessions.c.owner == replica.id,
            sessions.c.epoch == epoch,
            sessions.c.closed_at.is_(None),
        )
        .with_for_update(key_share=True)
    )
    if held is None:
        raise NotOwnerError(f"{replica.name} does not own session {session_id} in epoch {epoch}")


async def taken(
    connection: AsyncConnection, replica: ReplicaId, session_ids: Sequence[str]
) -> list[str]:
    """The sessions that are closed or owned by another replica."""
    found: list[str] = []
    for first in range(0, len(session_ids), _MOST_IDS):
        rows = await connection.scalars(
            sa.select(sessions.c.id).where(
                sessions.c.id.in_(padded(session_ids[first : first + _MOST_IDS])),
                sa.or_(
                    sessions.c.owner.is_distinct_from(replica.id),
                    sessions.c.closed_at.is_not(None),
                ),
            )
        )
        found += rows
    return found


async def _has_running_turn(connection: AsyncConnection, session_id: str) -> bool:
    found = await connection.scalar(
        sa.select(turn_rows.c.id)
        .where(turn_rows.c.session_id == session_id, is_running(turn_rows))
        .limit(1)
    )
    return found is not None
