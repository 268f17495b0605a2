"""SQL of quotas: one conditional update reserves a turn's worst case; its end settles it."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import ReturningUpdate

from sessiond.quota import (
    DAY_S,
    MINUTE_S,
    QUOTA_FIELDS,
    Account,
    Quota,
    QuotaUse,
    Wanted,
    Windows,
    windows_at,
)
from sessiond.store.errors import QuotaExceededError
from sessiond.store.records import NewReservation, NewTurn
from sessiond.store.schema import quotas, reservations, sessions, turns
from sessiond.store.sessions import ensure_user
from sessiond.store.text_padding import padded

_FURTHEST = 20  # reservation lifetimes by which clocks of live servers may differ
_HELD = (reservations.c.tokens, reservations.c.minute_start, reservations.c.day_start)


def _within(value: sa.ColumnElement[Any], limit: sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return sa.or_(limit.is_(None), value <= limit)


def _take() -> ReturningUpdate[Any]:
    """Reserve turns and tokens if the limits allow it, in windows that never move back.

    Clocks of servers differ: a window that one server has opened counts for the others. A window
    further ahead was opened by a wrong clock and is replaced.
    """
    table, given = quotas.c, sa.bindparam
    is_minute = table.minute_start.between(given("minute"), given("minute") + MINUTE_S)
    is_day = table.day_start.between(given("day"), given("day") + DAY_S)
    minute_tokens = sa.case((is_minute, table.minute_tokens), else_=0) + given("more_tokens")
    day_tokens = sa.case((is_day, table.day_tokens), else_=0) + given("more_tokens")
    return (
        quotas.update()
        .where(
            table.user_id == given("of_user"),
            _within(table.turns + given("more_turns"), table.max_concurrent_turns),
            _within(minute_tokens, table.tokens_per_minute),
            _within(day_tokens, table.tokens_per_day),
        )
        .values(
            turns=table.turns + given("more_turns"),
            minute_start=sa.case((is_minute, table.minute_start), else_=given("minute")),
            minute_tokens=minute_tokens,
            day_start=sa.case((is_day, table.day_start), else_=given("day")),
            day_tokens=day_tokens,
        )
        .returning(*quotas.c)
    )


def _refund_statement() -> sa.Update:
    """Refund a reservation to its windows, if they are still current."""
    table, given = quotas.c, sa.bindparam
    minute = sa.case((table.minute_start == given("minute"), given("more_tokens")), else_=0)
    day = sa.case((table.day_start == given("day"), given("more_tokens")), else_=0)
    return (
        quotas.update()
        .where(table.user_id == given("of_user"))
        .values(
            turns=table.turns - given("less_turns"),
            minute_tokens=table.minute_tokens + minute,
            day_tokens=table.day_tokens + day,
            total_tokens=table.total_tokens + given("used"),
        )
    )


# Built once: every turn executes them, and building one costs more than its execution.
_TAKE = _take()
_REFUND = _refund_statement()
_RESERVE = reservations.insert()
_ADD_RESIDENCY = (
    quotas.update()
    .where(quotas.c.user_id == sa.bindparam("of_user"))
    .values(byte_seconds=quotas.c.byte_seconds + sa.bindparam("more"))
)
_END_RESERVATION = (
    reservations.delete()
    .where(
        reservations.c.turn_id == sa.bindparam("of_turn"),
        reservations.c.user_id == sa.bindparam("of_user"),
    )
    .returning(*_HELD)
)


async def begin(  # noqa: PLR0913 -- the turn's user, owner and reservation
    connection: AsyncConnection,
    user_id: str,
    now: float,
    reservation: NewReservation | None,
    *,
    owner: str,
    opens: bool,
) -> Account:
    """Reserve for a turn, if there is a reservation; returns the user's account.

    `owner`: id of the replica that runs the turn.

    Raises:
        QuotaExceededError: the remaining quota is too small.
    """
    if reservation is not None:
        return await reserve(connection, user_id, reservation, owner=owner, opens=opens)
    await ensure_user(connection, user_id, now)
    return await standing(connection, user_id)


async def reserve(
    connection: AsyncConnection,
    user_id: str,
    reservation: NewReservation,
    *,
    owner: str,
    opens: bool,
) -> Account:
    """Reserve a turn, its tokens and, if it `opens` one, a session; returns the account after it.

    Raises:
        QuotaExceededError: the remaining quota is too small.
    """
    wanted = Wanted(tokens=reservation.tokens, sessions=int(opens))
    sums = {"more_turns": wanted.turns, "more_tokens": wanted.tokens}
    values = {"of_user": user_id, **windows_at(reservation.now)._asdict(), **sums}
    row = (await connection.execute(_TAKE, values)).one_or_none()
    if row is None:  # too little, or the quota's or even the user's row is missing
        await ensure_user(connection, user_id, reservation.now)
        await _ensure(connection, user_id)
        row = (await connection.execute(_TAKE, values)).one_or_none()
    if row is None:
        raise QuotaExceededError(user_id, await standing(connection, user_id), wanted)
    # The update has locked the user's row, so no other transaction opens a session meanwhile.
    found = await _standing(connection, row) if opens else _account(row, sessions_open=0)
    if opens:
        _check_sessions(user_id, found, wanted)
    await connection.execute(
        _RESERVE,
        {
            "turn_id": reservation.turn_id,
            "user_id": user_id,
            "tokens": reservation.tokens,
            "minute_start": row.minute_start,
            "day_start": row.day_start,
            "expires_at": reservation.expires_at,
            "owner": owner,
        },
    )
    return found


async def admit_session(connection: AsyncConnection, user_id: str) -> None:
    """Check the limit of open sessions, and lock it until the transaction ends.

    Raises:
        QuotaExceededError: the limit is reached.
    """
    row = (
        await connection.execute(
            sa.select(quotas).where(quotas.c.user_id == user_id).with_for_update()
        )
    ).one_or_none()
    if row is not None:
        found = await _standing(connection, row)
        _check_sessions(user_id, found, Wanted(tokens=0, turns=0, sessions=1))


async def settle(  # noqa: PLR0913 -- the values of one update
    connection: AsyncConnection,
    user_id: str,
    turn_id: str,
    *,
    used: int,
    now: float,
    once: bool = False,
) -> None:
    """Settle an ended turn: refund the unused part of its reservation to its windows.

    `once`: a turn without a reservation has been settled before, and nothing is done.
    """
    deleted = await connection.execute(_END_RESERVATION, {"of_turn": turn_id, "of_user": user_id})
    held = deleted.one_or_none()
    if held is None and once:
        return
    if held is None:  # the reservation had expired and was refunded in full
        await _refund(connection, user_id, windows_at(now), turns=0, held=0, used=used)
    else:
        windows = Windows(held.minute_start, held.day_start)
        await _refund(connection, user_id, windows, turns=1, held=held.tokens, used=used)


async def reap(connection: AsyncConnection, now: float, reservation_s: float) -> int:
    """Release expired reservations, those of servers that do not renew them; returns their number.

    Reservations that expire too far in the future are released, too: a clock was set back since.
    At `now` 0 none is expired.
    """
    latest = now + _FURTHEST * reservation_s if now else float("inf")
    is_expired = sa.or_(reservations.c.expires_at <= now, reservations.c.expires_at > latest)
    return await _release(connection, is_expired)


async def release_of(connection: AsyncConnection, owners: Sequence[str]) -> int:
    """Release the reservations of dead replicas (ids); returns their number."""
    if not owners:
        return 0
    return await _release(connection, reservations.c.owner.in_(padded(owners)))


async def _release(connection: AsyncConnection, which: sa.ColumnElement[bool]) -> int:
    deleted = await connection.execute(
        reservations.delete().where(which).returning(reservations.c.user_id, *_HELD)
    )
    rows = deleted.all()
    for row in sorted(rows, key=lambda row: row.user_id):  # one lock order avoids deadlocks
        windows = Windows(row.minute_start, row.day_start)
        await _refund(connection, row.user_id, windows, turns=1, held=row.tokens, used=0)
    return len(rows)


async def renew(connection: AsyncConnection, turn_ids: Sequence[str], expires_at: float) -> None:
    """Renew the reservations of running turns."""
    await connection.execute(
        reservations.update()
        .where(reservations.c.turn_id.in_(padded(turn_ids)))
        .values(expires_at=expires_at)
    )


# Sessions of which no turn was kept, though some were begun, and none runs: a client that lost its
# first turn may begin anew. With its next turn such a session counts again.
_IS_LEFT = sa.and_(
    sessions.c.tip_id.is_(None),
    sa.func.coalesce(sessions.c.usage_turns, 0) > 0,
    # a count, as Postgres makes of NOT EXISTS a join that reads all turns
    sa.select(sa.func.count())
    .where(
        turns.c.session_id == sessions.c.id,
        turns.c.status != "failed",
        turns.c.status != "cancelled",
    )
    .scalar_subquery()
    == 0,
)


async def account(connection: AsyncConnection, user_id: str) -> Account:
    """A user's limits and usage; no limits and no usage for an unknown user.

    Counts all open sessions: for reports, not for admission.
    """
    row, sessions_open = await _row(connection, user_id), await _open_sessions(connection, user_id)
    if row is None:
        return Account(quota=Quota(), use=QuotaUse(sessions=sessions_open))
    return _account(row, sessions_open=sessions_open)


async def standing(connection: AsyncConnection, user_id: str) -> Account:
    """As `account`, for admission: sessions are counted only if they are limited."""
    row = await _row(connection, user_id)
    return (
        Account(quota=Quota(), use=QuotaUse()) if row is None else await _standing(connection, row)
    )


async def change(connection: AsyncConnection, user_id: str, limits: Mapping[str, Any]) -> None:
    """Replace the named limits of a stored user."""
    await _ensure(connection, user_id)
    await connection.execute(quotas.update().where(quotas.c.user_id == user_id).values(**limits))


async def add_residency(connection: AsyncConnection, byte_seconds: Mapping[str, float]) -> None:
    """Add to the KV byte-seconds of stored users."""
    users = sorted(byte_seconds)  # one lock order avoids deadlocks
    if not users:
        return
    await connection.execute(_insert(connection), [{"user_id": user_id} for user_id in users])
    await connection.execute(
        _ADD_RESIDENCY, [{"of_user": one, "more": byte_seconds[one]} for one in users]
    )


async def _refund(  # noqa: PLR0913 -- the values of one update, private
    connection: AsyncConnection,
    user_id: str,
    windows: Windows,
    *,
    turns: int,
    held: int,
    used: int,
) -> None:
    sums = {"less_turns": turns, "more_tokens": used - held, "used": used}
    await connection.execute(_REFUND, {"of_user": user_id, **windows._asdict(), **sums})


async def _ensure(connection: AsyncConnection, user_id: str) -> None:
    """Insert a row without limits unless the user has one."""
    await connection.execute(_insert(connection), {"user_id": user_id})


def _insert(connection: AsyncConnection) -> sa.Insert:
    if connection.dialect.name == "sqlite":
        return sqlite.insert(quotas).on_conflict_do_nothing()
    return postgresql.insert(quotas).on_conflict_do_nothing()


async def _open_sessions(connection: AsyncConnection, user_id: str) -> int:
    is_open = sa.and_(sessions.c.user_id == user_id, sessions.c.closed_at.is_(None))
    count = await connection.scalar(sa.select(sa.func.count()).where(is_open))
    left = await connection.scalar(
        sa.select(sa.func.count()).select_from(sessions).where(is_open, _IS_LEFT)
    )
    return (count or 0) - (left or 0)


async def is_left(connection: AsyncConnection, turn: NewTurn) -> bool:
    """Whether the turn is the next one of a session that counts no more: see `_IS_LEFT`."""
    if turn.parent_id is not None:
        return False
    left = sa.select(sessions.c.id).where(sessions.c.id == turn.session_id, _IS_LEFT)
    return await connection.scalar(left) is not None


async def _row(connection: AsyncConnection, user_id: str) -> sa.Row[Any] | None:
    rows = await connection.execute(sa.select(quotas).where(quotas.c.user_id == user_id))
    return rows.one_or_none()


async def _standing(connection: AsyncConnection, row: sa.Row[Any]) -> Account:
    if row.max_sessions is None:
        return _account(row, sessions_open=0)
    return _account(row, sessions_open=await _open_sessions(connection, row.user_id))


def _check_sessions(user_id: str, found: Account, wanted: Wanted) -> None:
    most = found.quota.max_sessions
    if most is not None and found.use.sessions + wanted.sessions > most:
        raise QuotaExceededError(user_id, found, wanted)


def _account(row: sa.Row[Any], *, sessions_open: int) -> Account:
    return Account(
        quota=Quota(**{name: getattr(row, name) for name in QUOTA_FIELDS}),
        use=QuotaUse(
            sessions=sessions_open,
            turns=row.turns,
            minute_start=row.minute_start,
            minute_tokens=row.minute_tokens,
            day_start=row.day_start,
            day_tokens=row.day_tokens,
            total_tokens=row.total_tokens,
            byte_seconds=row.byte_seconds,
        ),
    )
