"""SQL of sessions and their system prefixes."""

from collections.abc import Sequence
from heapq import nlargest
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.domain import SessionUsage
from sessiond.store.errors import BaseGoneError, StaleSessionError
from sessiond.store.records import (
    CommittedTurn,
    NewPrompt,
    NewSession,
    Prompt,
    SessionChoice,
    SessionHints,
    SessionRecord,
    Standing,
    TurnRecord,
)
from sessiond.store.schema import is_running, sessions, system_prompts, turns, users
from sessiond.store.text_padding import padded
from sessiond.store.token_ids import pack
from sessiond.store.user_salt import new_salt

_SOME_FORKS = 64  # candidates of which the caller closes one that is not held
_IDS_AT_ONCE = 1000
_FIRST, _PARENT, _RUNNING = (turns.alias(name) for name in ("first", "parent", "running"))
_LATEST_FIRST = (sessions.c.last_active_at.desc(), sessions.c.id.desc())
_STANDING: dict[Standing, tuple[sa.ColumnElement[bool], ...]] = {
    "open": (sessions.c.closed_at.is_(None),),
    "new": (sessions.c.closed_at.is_(None), sessions.c.tip_id.is_(None)),
    "begun": (sessions.c.closed_at.is_(None), sessions.c.tip_id.is_not(None)),
    "closed": (sessions.c.closed_at.is_not(None),),
}
_RECORD = (
    sa.select(
        sessions,
        system_prompts.c.text.label("prompt_text"),
        system_prompts.c.opening_text,
        system_prompts.c.tokens.label("prompt_tokens"),
        sa.func.coalesce(turns.c.awaits_reply, sa.false()).label("awaits_reply"),
        turns.c.messages_digest,
    )
    .join(system_prompts, system_prompts.c.id == sessions.c.system_prompt_id)
    .outerjoin(turns, turns.c.id == sessions.c.tip_id)
)


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


async def ensure_user(connection: AsyncConnection, user_id: str, now: float) -> None:
    """Store the user unless it is stored."""
    dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
    await connection.execute(
        dialect.insert(users)
        .values(id=user_id, created_at=now, salt=new_salt())
        .on_conflict_do_nothing()
    )


async def insert_prompt(connection: AsyncConnection, user_id: str, prompt: NewPrompt) -> None:
    """Store a system prefix."""
    await connection.execute(
        system_prompts.insert().values(
            id=prompt.id,
            user_id=user_id,
            text=prompt.text,
            opening_text=prompt.opening_text,
            token_ids=pack(prompt.ids),
            tokens=len(prompt.ids),
        )
    )


async def insert(
    connection: AsyncConnection, session: NewSession, *, owner: str, epoch: int
) -> None:
    """Store a session with its owner."""
    await connection.execute(
        sessions.insert().values(
            id=session.id,
            user_id=session.user_id,
            model=session.model,
            vocab_size=session.vocab_size,
            system_prompt_id=session.prompt_id,
            tip_id=session.tip_id,
            context_tokens=session.context_tokens,
            retention=session.hints.retention,
            priority=session.hints.priority,
            ttl_s=session.hints.ttl_s,
            context_policy=session.context_policy,
            fidelity=session.fidelity,
            metadata=session.metadata,
            created_at=session.created_at,
            last_active_at=session.created_at,
            owner=owner,
            epoch=epoch,
            usage_turns=0,
            usage_input=0,
            usage_cached=0,
            usage_output=0,
        )
    )


async def find(connection: AsyncConnection, user_id: str, session_id: str) -> SessionRecord | None:
    """One session of the user, closed ones included."""
    rows = await connection.execute(
        _RECORD.where(sessions.c.id == session_id, sessions.c.user_id == user_id)
    )
    row = rows.one_or_none()
    return None if row is None else _record(row)


async def page(
    connection: AsyncConnection, which: SessionChoice, *, limit: int, after: str | None
) -> tuple[tuple[SessionRecord, ...], bool]:
    """The chosen sessions, latest activity first, and whether more follow."""
    if which.ids is None:
        select = _chosen(_RECORD, which, after).order_by(*_LATEST_FIRST).limit(limit + 1)
    else:
        first = await _first_of(connection, which, which.ids, limit=limit + 1, after=after)
        select = _RECORD.where(sessions.c.id.in_(padded(first)))
    found = [_record(row) for row in await connection.execute(select)]
    if which.ids is not None:  # sorted here: for ORDER BY, SQLite may scan all sessions
        found.sort(key=lambda session: (session.last_active_at, session.id), reverse=True)
    return tuple(found[:limit]), len(found) > limit


async def _first_of(
    connection: AsyncConnection,
    which: SessionChoice,
    ids: Sequence[str],
    *,
    limit: int,
    after: str | None,
) -> list[str]:
    """The first `limit` of the ids, latest activity first.

    Sorted here: with ORDER BY, a database may scan all sessions in that order.
    """
    places: list[tuple[float, str]] = []
    columns = sa.select(sessions.c.last_active_at, sessions.c.id)
    for some in batched(ids, _IDS_AT_ONCE):
        select = _chosen(columns, which, after).where(sessions.c.id.in_(padded(some)))
        places += [(row.last_active_at, row.id) for row in await connection.execute(select)]
    return [session_id for _, session_id in nlargest(limit, places)]


def _chosen(
    select: sa.Select[*tuple[Any, ...]], which: SessionChoice, after: str | None
) -> sa.Select[*tuple[Any, ...]]:
    # with given ids, coalesce keeps the database from scanning the index of users instead
    user = sessions.c.user_id if which.ids is None else sa.func.coalesce(sessions.c.user_id, "")
    is_of_user = sa.true() if which.user_id is None else user == which.user_id
    select = select.where(is_of_user, *_STANDING[which.standing])
    if after is None:
        return select
    place = sa.tuple_(sessions.c.last_active_at, sessions.c.id)
    seen = (
        sa.select(sessions.c.last_active_at, sessions.c.id)
        .where(sessions.c.id == after, is_of_user)
        .subquery("seen")
    )
    return select.join(seen, place < sa.tuple_(seen.c.last_active_at, seen.c.id))


def batched(ids: Sequence[str], size: int) -> list[Sequence[str]]:
    """Split ids into batches, as a database limits the values in a statement."""
    return [ids[start : start + size] for start in range(0, len(ids), size)]


async def idle_forks(connection: AsyncConnection, user_id: str) -> tuple[str, ...]:
    """Some open forks of the user in which no turn runs, least recently used first."""
    is_fork = sa.or_(
        turns.c.session_id != sessions.c.id,
        sa.exists().where(
            _FIRST.c.session_id == sessions.c.id,
            _FIRST.c.parent_id == _PARENT.c.id,
            _PARENT.c.session_id != sessions.c.id,
        ),
    )
    runs = sa.exists().where(_RUNNING.c.session_id == sessions.c.id, is_running(_RUNNING))
    rows = await connection.execute(
        sa.select(sessions.c.id)
        .join(turns, turns.c.id == sessions.c.tip_id)
        .where(sessions.c.user_id == user_id, sessions.c.closed_at.is_(None), is_fork, ~runs)
        .order_by(sessions.c.last_active_at, sessions.c.id)
        .limit(_SOME_FORKS)
    )
    return tuple(rows.scalars())


async def abandoned(
    connection: AsyncConnection, before: float, limit: int
) -> tuple[tuple[str, str], ...]:
    """Users and ids of open sessions last active before `before` without a running turn.

    Oldest first.
    """
    runs = sa.exists().where(turns.c.session_id == sessions.c.id, is_running(turns))
    rows = await connection.execute(
        sa.select(sessions.c.user_id, sessions.c.id)
        .where(sessions.c.closed_at.is_(None), sessions.c.last_active_at < before, ~runs)
        .order_by(sessions.c.last_active_at, sessions.c.id)
        .limit(limit)
    )
    return tuple((row.user_id, row.id) for row in rows)


async def advance(connection: AsyncConnection, turn: CommittedTurn) -> None:
    """Move the tip of a session from the turn's parent to the turn.

    Raises:
        StaleSessionError: the session is closed, or its tip is not the turn's parent.
    """
    changed = await connection.execute(
        sessions.update()
        .where(
            sessions.c.id == turn.session_id,
            sessions.c.user_id == turn.user_id,
            sessions.c.tip_id.is_not_distinct_from(turn.parent_id),
            sessions.c.closed_at.is_(None),
        )
        .values(
            tip_id=turn.id,
            system_prompt_id=turn.prompt_id,
            context_tokens=turn.context_tokens,
            fidelity=turn.usage.fidelity,
            last_active_at=turn.finished_at,
        )
    )
    if changed.rowcount != 1:
        raise StaleSessionError(
            f"the tip of session {turn.session_id} is no longer {turn.parent_id}"
        )


async def tip(connection: AsyncConnection, session_id: str) -> str | None:
    """The tip of a session."""
    tip_id: str | None = await connection.scalar(
        sa.select(sessions.c.tip_id).where(sessions.c.id == session_id)
    )
    return tip_id


async def reset(connection: AsyncConnection, user_id: str, session_id: str, now: float) -> bool:
    """Empty the context except for its system prefix; returns whether the session was open."""
    tokens = (
        sa.select(system_prompts.c.tokens)
        .where(system_prompts.c.id == sessions.c.system_prompt_id)
        .scalar_subquery()
    )
    return await change(
        connection,
        user_id,
        session_id,
        tip_id=None,
        context_tokens=tokens,
        fidelity="exact",
        last_active_at=now,
    )


async def rewind(  # noqa: PLR0913, PLR0917 -- session, present tip, new tip
    connection: AsyncConnection,
    user_id: str,
    session_id: str,
    tip_id: str | None,
    turn: TurnRecord,
    now: float,
) -> bool:
    """Move the tip from `tip_id` back to a turn before it; returns False if the tip differs."""
    changed = await connection.execute(
        sessions.update()
        .where(
            sessions.c.id == session_id,
            sessions.c.user_id == user_id,
            sessions.c.tip_id.is_not_distinct_from(tip_id),
            sessions.c.closed_at.is_(None),
        )
        .values(
            tip_id=turn.id,
            system_prompt_id=turn.prompt.id,
            context_tokens=turn.context_tokens,
            fidelity=turn.usage.fidelity,
            last_active_at=now,
        )
    )
    return changed.rowcount == 1


async def close(connection: AsyncConnection, user_id: str, session_id: str, now: float) -> bool:
    """Close a session; returns whether it was open."""
    return await change(connection, user_id, session_id, closed_at=now)


async def user_policy(connection: AsyncConnection, user_id: str) -> dict[str, Any] | None:
    """The context policy of a user; None: the server's, also for an unknown user."""
    policy: dict[str, Any] | None = await connection.scalar(
        sa.select(users.c.context_policy).where(users.c.id == user_id)
    )
    return policy


async def set_user_policy(
    connection: AsyncConnection, user_id: str, policy: dict[str, Any] | None
) -> None:
    """Replace the context policy of a stored user."""
    await connection.execute(
        users.update().where(users.c.id == user_id).values(context_policy=policy)
    )


async def change(connection: AsyncConnection, user_id: str, session_id: str, **values: Any) -> bool:
    """Change columns of an open session; returns False if it is not open."""
    changed = await connection.execute(
        sessions.update()
        .where(
            sessions.c.id == session_id,
            sessions.c.user_id == user_id,
            sessions.c.closed_at.is_(None),
        )
        .values(**values)
    )
    return changed.rowcount == 1


def _record(row: sa.Row[*tuple[Any, ...]]) -> SessionRecord:
    return SessionRecord(
        id=row.id,
        user_id=row.user_id,
        model=row.model,
        vocab_size=row.vocab_size,
        prompt=Prompt(
            id=row.system_prompt_id,
            text=row.prompt_text,
            opening_text=row.opening_text,
            tokens=row.prompt_tokens,
        ),
        tip_id=row.tip_id,
        context_tokens=row.context_tokens,
        awaits_reply=row.awaits_reply,
        hints=SessionHints(retention=row.retention, priority=row.priority, ttl_s=row.ttl_s),
        context_policy=row.context_policy,
        fidelity=row.fidelity,
        metadata=row.metadata,
        created_at=row.created_at,
        last_active_at=row.last_active_at,
        closed_at=row.closed_at,
        owner=row.owner,
        epoch=row.epoch,
        digest=row.messages_digest,
        usage=_usage(row),
    )


def _usage(row: sa.Row[*tuple[Any, ...]]) -> SessionUsage | None:
    if row.usage_turns is None:
        return None
    return SessionUsage(
        turns=row.usage_turns,
        input_tokens=row.usage_input,
        cached_tokens=row.usage_cached,
        output_tokens=row.usage_output,
    )
