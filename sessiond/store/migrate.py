"""Brings a database to the newest schema, and says whether it is there. Runs alembic."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.exc import DBAPIError

import migrations
from sessiond.store.database import Database, parse_url
from sessiond.store.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Where a database's schema stands. `current` None: there is none yet."""

    current: str | None
    newest: str

    @property
    def is_current(self) -> bool:
        """Whether the server can use it as it is."""
        return self.current == self.newest


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate upwards; makes the file and its folder where they are missing.

    A schema that is current is left alone, without a lock. Blocks, and runs its own event
    loop: from a coroutine call it in a thread.

    Raises:
        StoreConfigError: the URL is of no kind that can be used.
        StoreError: the database can't be opened, or is not one that this version knows.
    """
    parsed = parse_url(url)
    try:
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        if revision == "head" and asyncio.run(check(url)).is_current:
            return
        command.upgrade(_config(url), revision)
    except DBAPIError as error:
        raise StoreError(f"database {parsed}: {error.orig}") from error
    except (OSError, CommandError) as error:
        raise StoreError(f"database {parsed}: {error}") from error


def downgrade(url: str, revision: str) -> None:
    """Migrate downwards, to `base` or a revision. Blocks, as `upgrade` does."""
    command.downgrade(_config(url), revision)


async def check(url: str) -> SchemaState:
    """Look where the schema stands; changes nothing and takes no lock.

    Raises:
        StoreConfigError: the URL is of no kind that can be used.
        StoreError: the database can't be read.
    """
    newest = ScriptDirectory.from_config(_config(url)).get_current_head()
    if newest is None:
        raise RuntimeError("no migration is installed")
    database = Database(url)
    try:
        current = await database.read(
            lambda connection: connection.run_sync(
                lambda inner: MigrationContext.configure(inner).get_current_revision()
            )
        )
    except StoreError as error:
        cause = error.__cause__
        reason = cause.orig if isinstance(cause, DBAPIError) else error
        raise StoreError(f"database {parse_url(url)}: {reason}") from error
    finally:
        await database.close()
    return SchemaState(current=current, newest=newest)


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url  # not an option: those give % a meaning
    return config
