"""SQL of turns: insert, commit, abort, queries."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.domain import TurnError, TurnUsage
from sessiond.store import items, usage
from sessiond.store.chains import VIEW_SUMMARY_TOKENS, history_tokens, newest_of, view_of
from sessiond.store.errors import StoreError
from sessiond.store.records import AbortedTurn, CommittedTurn, NewTurn, Prompt, TurnRecord
from sessiond.store.replicas import is_alive
from sessiond.store.schema import is_running, sessions, summaries, system_prompts, turns
from sessiond.store.text_padding import padded
from sessiond.store.token_ids import pack

# A starting server assumes that every running turn belongs to a dead server. When that is wrong,
# the end recorded by the server that runs the turn replaces this mark.
_INTERRUPTED = TurnError(code="engine_restarted", message="the server stopped during the turn")
_DIGESTS = 200  # per query, longest prefixes first
_USAGE = (
    "reused_tokens",
    "restored_tokens",
    "restored_from",
    "recomputed_tokens",
    "new_tokens",
    "output_tokens",
    "kv_bytes",
    "blocks",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "context",
    "fidelity",
    "summary_tokens",
)
# Without the token ids, which only a context needs.
_RECORD: sa.Select[*tuple[Any, ...]] = (
    sa.select(
        *(column for column in turns.c if column.name not in {"input_ids", "reply_ids"}),
        system_prompts.c.text.label("prompt_text"),
        system_prompts.c.opening_text,
        system_prompts.c.tokens.label("prompt_tokens"),
        VIEW_SUMMARY_TOKENS,
    )
    .join(system_prompts, system_prompts.c.id == turns.c.system_prompt_id)
    .outerjoin(summaries, summaries.c.id == turns.c.summary_id)
)


async def insert(connection: AsyncConnection, turn: NewTurn) -> None:
    """Store a running turn with its items."""
    await connection.execute(
        turns.insert().values(
            id=turn.id,
            user_id=turn.user_id,
            session_id=turn.session_id,
            parent_id=turn.parent_id,
            system_prompt_id=turn.prompt_id,
            message_id=turn.message_id,
            model=turn.model,
            status="running",
            generate=turn.generate,
            awaits_reply=turn.awaits_reply,
            request=turn.request,
            previous_response_id=turn.previous_response_id,
            seed=turn.seed,
            start_tokens=turn.start_tokens,
            input_tokens=len(turn.input_ids),
            input_ids=pack(turn.input_ids),
            parts=list(turn.parts) or None,
            created_at=turn.created_at,
        )
    )
    await items.insert(connection, turn.user_id, turn.items)
    await usage.add(connection, turn.session_id, None, begun=1)


async def keep(connection: AsyncConnection, turn: CommittedTurn) -> bool:
    """Commit a running turn: its ids join the context.

    Returns:
        False when an earlier call has committed it with the same ending.

    Raises:
        StoreError: the turn is neither running nor committed so.
    """
    history = await history_tokens(connection, turn.parent_id)
    changed = await _end(
        connection,
        turn,
        history_tokens=history + turn.context_tokens - turns.c.start_tokens,
        reply_ids=pack(turn.reply_ids),
        context_tokens=turn.context_tokens,
        visible=None if turn.view is None else [list(span) for span in turn.view.spans],
        summary_id=turn.view.summary.id if turn.view and turn.view.summary else None,
        messages_digest=turn.digest,
        error_code=None,
        error_message=None,
    )
    if not changed and not await is_kept(connection, turn):
        raise StoreError(f"turn {turn.id} is not running")
    return changed


async def lose(connection: AsyncConnection, turn: AbortedTurn) -> None:
    """Abort a running turn; contexts stay unchanged.

    Raises:
        StoreError: the turn is not running.
    """
    changed = await _end(
        connection,
        turn,
        error_code=turn.error.code if turn.error else None,
        error_message=turn.error.message if turn.error else None,
    )
    if not changed:
        raise StoreError(f"turn {turn.id} is not running")


async def _end(
    connection: AsyncConnection, turn: CommittedTurn | AbortedTurn, **values: Any
) -> bool:
    changed = await connection.execute(
        turns.update()
        .where(turns.c.id == turn.id, turns.c.user_id == turn.user_id, _has_not_ended())
        .values(
            status=turn.status,
            reason=turn.reason,
            finished_at=turn.finished_at,
            **{name: getattr(turn.usage, name) for name in _USAGE},
            **values,
        )
    )
    if changed.rowcount != 1:
        return False
    session = sa.select(turns.c.session_id).where(turns.c.id == turn.id).scalar_subquery()
    await usage.add(connection, session, turn.usage)
    if turn.reply is not None:
        await items.insert_reply(connection, turn.user_id, turn.reply)
    return True


def _has_not_ended() -> sa.ColumnElement[bool]:
    marked = sa.and_(
        turns.c.status == "failed",
        turns.c.error_code == _INTERRUPTED.code,
        turns.c.error_message == _INTERRUPTED.message,
    )
    return sa.or_(turns.c.status == "running", marked)


async def is_kept(connection: AsyncConnection, turn: CommittedTurn) -> bool:
    """Whether the turn was committed with this ending."""
    found = await connection.scalar(
        sa.select(turns.c.id).where(
            turns.c.id == turn.id,
            turns.c.user_id == turn.user_id,
            turns.c.status == turn.status,
            turns.c.context_tokens == turn.context_tokens,
        )
    )
    return found is not None


async def fail_running(
    connection: AsyncConnection, now: float, session_id: str | None = None
) -> int:
    """Mark running turns as failed by the end of their server; returns their number.

    `session_id`: only turns of this session; None: those of all sessions whose owner is dead.
    """
    if session_id is not None:
        interrupted: sa.ColumnElement[bool] = turns.c.session_id == session_id
    else:
        interrupted = ~sa.exists().where(
            sessions.c.id == turns.c.session_id, is_alive(sessions.c.owner, now)
        )
    changed = await connection.execute(
        turns.update()
        .where(is_running(turns), interrupted)
        .values(
            status="failed",
            error_code=_INTERRUPTED.code,
            error_message=_INTERRUPTED.message,
            finished_at=now,
        )
    )
    return changed.rowcount


async def find(connection: AsyncConnection, user_id: str, turn_id: str) -> TurnRecord | None:
    """One turn of the user, deleted ones included."""
    rows = await connection.execute(
        _RECORD.where(turns.c.id == turn_id, turns.c.user_id == user_id)
    )
    row = rows.one_or_none()
    return None if row is None else _record(row)


async def by_digest(
    connection: AsyncConnection, user_id: str, model: str, digests: Sequence[str]
) -> tuple[str, int] | None:
    """The newest committed turn of an open session with the last digest that any turn has.

    Returns:
        Its id and the digest's index in the sequence.
    """
    found = (
        sa.select(turns.c.id)
        .join(sessions, sessions.c.id == turns.c.session_id)
        .where(
            turns.c.user_id == user_id,
            turns.c.model == model,
            turns.c.context_tokens.is_not(None),
            turns.c.deleted_at.is_(None),
            sessions.c.closed_at.is_(None),
        )
    )
    for stop in range(len(digests), 0, -_DIGESTS):
        start = max(0, stop - _DIGESTS)
        wanted = turns.c.messages_digest.in_(padded(digests[start:stop]))
        known = await connection.scalars(
            found.with_only_columns(turns.c.messages_digest).where(wanted).distinct()
        )
        places = [digests.index(digest, start, stop) for digest in known]
        if places:
            place = max(places)
            newest = found.where(turns.c.messages_digest == digests[place]).order_by(
                turns.c.created_at.desc(), turns.c.id.desc()
            )
            turn_id = (await connection.scalars(newest.limit(1))).one()
            return turn_id, place
    return None


async def chain(
    connection: AsyncConnection, user_id: str, tip_id: str | None, count: int
) -> tuple[TurnRecord, ...]:
    """The newest `count` turns of a context, first to last."""
    ancestors = newest_of(user_id, tip_id, count)
    rows = await connection.execute(
        _RECORD.join(ancestors, ancestors.c.id == turns.c.id).order_by(ancestors.c.depth.desc())
    )
    return tuple(_record(row) for row in rows)


async def outside_context(
    connection: AsyncConnection, user_id: str, session_id: str, count: int
) -> tuple[TurnRecord, ...]:
    """The newest running and aborted turns of a session, oldest first."""
    rows = await connection.execute(
        _RECORD.where(
            turns.c.session_id == session_id,
            turns.c.user_id == user_id,
            turns.c.context_tokens.is_(None),
        )
        .order_by(turns.c.created_at.desc(), turns.c.id.desc())
        .limit(count)
    )
    return tuple(_record(row) for row in rows)[::-1]


async def parent_of(connection: AsyncConnection, user_id: str, turn_id: str) -> str | None:
    """The turn before a turn of the user; None: there is none."""
    parent_id: str | None = await connection.scalar(
        sa.select(turns.c.parent_id).where(turns.c.id == turn_id, turns.c.user_id == user_id)
    )
    return parent_id


async def mark_deleted(connection: AsyncConnection, user_id: str, turn_id: str, now: float) -> bool:
    """Mark an ended turn as deleted; returns whether it existed."""
    changed = await connection.execute(
        turns.update()
        .where(
            turns.c.id == turn_id,
            turns.c.user_id == user_id,
            turns.c.deleted_at.is_(None),
            turns.c.status != "running",
        )
        .values(deleted_at=now)
    )
    return changed.rowcount == 1


def _record(row: sa.Row[*tuple[Any, ...]]) -> TurnRecord:
    return TurnRecord(
        id=row.id,
        user_id=row.user_id,
        session_id=row.session_id,
        parent_id=row.parent_id,
        prompt=Prompt(
            id=row.system_prompt_id,
            text=row.prompt_text,
            opening_text=row.opening_text,
            tokens=row.prompt_tokens,
        ),
        message_id=row.message_id,
        model=row.model,
        status=row.status,
        generate=row.generate,
        awaits_reply=row.awaits_reply,
        request=row.request,
        previous_response_id=row.previous_response_id,
        seed=row.seed,
        start_tokens=row.start_tokens,
        input_tokens=row.input_tokens,
        context_tokens=row.context_tokens,
        reason=row.reason,
        error=TurnError(code=row.error_code, message=row.error_message) if row.error_code else None,
        usage=TurnUsage(**{name: getattr(row, name) for name in _USAGE}),
        created_at=row.created_at,
        finished_at=row.finished_at,
        deleted_at=row.deleted_at,
        view=view_of(row),
        digest=row.messages_digest,
        parts=tuple(row.parts or ()),
    )
