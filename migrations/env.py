"""Alembic environment. Entered through `sessiond.store.migrate`."""

import asyncio

import sqlalchemy as sa
from alembic import context

from sessiond.store.database import parse_url, writer_engine
from sessiond.store.schema import metadata

_LOCK = 0x5E5510AD  # key of the advisory lock, arbitrary


def run(connection: sa.Connection) -> None:
    """Migrate on one connection, in one transaction.

    If several servers start at once, one migrates; the others wait for the lock (the advisory one,
    or SQLite's write lock) and then find a current schema.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    context.configure(
        connection=connection,
        target_metadata=metadata,
        render_as_batch=True,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


async def run_online() -> None:
    """Run `run` on a connection of its own."""
    engine = writer_engine(parse_url(context.config.attributes["url"]))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(run)
    finally:
        await engine.dispose()


asyncio.run(run_online())
