"""SQL of items: input messages and replies of turns."""

from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from sessiond.domain import ItemPage, ItemView
from sessiond.store.chains import chain_of
from sessiond.store.schema import items

Order = Literal["asc", "desc"]


async def insert(connection: AsyncConnection, user_id: str, views: tuple[ItemView, ...]) -> None:
    """Store a turn's input items in order."""
    rows = [_row(view, user_id, position, is_reply=False) for position, view in enumerate(views)]
    if rows:
        await connection.execute(items.insert(), rows)


async def insert_reply(connection: AsyncConnection, user_id: str, view: ItemView) -> None:
    """Store a turn's reply after its input items."""
    count = await connection.scalar(
        sa.select(sa.func.count()).where(items.c.turn_id == view.response_id)
    )
    await connection.execute(items.insert().values(_row(view, user_id, count or 0, is_reply=True)))


async def of_context(  # noqa: PLR0913 -- user, context and page
    connection: AsyncConnection,
    user_id: str,
    tip_id: str | None,
    *,
    limit: int,
    after: str | None,
    order: Order,
) -> ItemPage:
    """A page of the messages in a context."""
    chain = chain_of(user_id, tip_id)
    select = sa.select(items, (-chain.c.depth).label("turn")).join(
        chain, chain.c.id == items.c.turn_id
    )
    return await _page(connection, select.subquery(), limit=limit, after=after, order=order)


async def of_turn(  # noqa: PLR0913 -- user, turn and page
    connection: AsyncConnection,
    user_id: str,
    turn_id: str,
    *,
    limit: int,
    after: str | None,
    order: Order,
) -> ItemPage:
    """A page of a turn's input messages."""
    select = sa.select(items, sa.literal(0).label("turn")).where(
        items.c.turn_id == turn_id, items.c.user_id == user_id, items.c.is_reply.is_(False)
    )
    return await _page(connection, select.subquery(), limit=limit, after=after, order=order)


async def find_in_context(
    connection: AsyncConnection, user_id: str, tip_id: str | None, item_id: str
) -> ItemView | None:
    """One message of a context."""
    chain = chain_of(user_id, tip_id)
    rows = await connection.execute(
        sa.select(items).join(chain, chain.c.id == items.c.turn_id).where(items.c.id == item_id)
    )
    row = rows.one_or_none()
    return None if row is None else _view(row)


async def reply_text(connection: AsyncConnection, user_id: str, turn_id: str) -> str:
    """The text of a turn's reply; "" when there is none."""
    text = await connection.scalar(
        sa.select(items.c.text).where(
            items.c.turn_id == turn_id, items.c.user_id == user_id, items.c.is_reply
        )
    )
    return text or ""


async def _page(
    connection: AsyncConnection, source: sa.Subquery, *, limit: int, after: str | None, order: Order
) -> ItemPage:
    place = sa.tuple_(source.c.turn, source.c.position)
    select = sa.select(source)
    if after is not None:
        seen = (
            sa.select(source.c.turn, source.c.position).where(source.c.id == after).subquery("seen")
        )
        last = sa.tuple_(seen.c.turn, seen.c.position)
        select = select.join(seen, place > last if order == "asc" else place < last)
    columns = (source.c.turn, source.c.position)
    ordered = [column.asc() if order == "asc" else column.desc() for column in columns]
    rows = (await connection.execute(select.order_by(*ordered).limit(limit + 1))).all()
    return ItemPage(items=tuple(_view(row) for row in rows[:limit]), has_more=len(rows) > limit)


def _row(view: ItemView, user_id: str, position: int, *, is_reply: bool) -> dict[str, Any]:
    return {
        "id": view.id,
        "user_id": user_id,
        "session_id": view.session_id,
        "turn_id": view.response_id,
        "position": position,
        "is_reply": is_reply,
        "role": view.role,
        "text": view.text,
        "status": view.status,
        "created_at": view.created_at,
    }


def _view(row: sa.Row[*tuple[Any, ...]]) -> ItemView:
    return ItemView(
        id=row.id,
        session_id=row.session_id,
        response_id=row.turn_id,
        role=row.role,
        text=row.text,
        status=row.status,
        created_at=row.created_at,
    )
