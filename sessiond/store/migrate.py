"""Migrates a database to the newest schema and checks its version. Runs alembic."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

import migrations
from sessiond.store.database import Database, parse_url
from sessiond.store.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaState:
    """Schema version of a database.

    `current` is None when there is no schema. `is_newer`: this version does not know it, so a later
    one has made it.
    """

    current: str | None
    newest: str
    is_newer: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the schema is the newest."""
        return self.current == self.newest

    @property
    def newer_text(self) -> str:
        """What to do about a schema that is newer than this server."""
        return (
            f"its schema {self.current} is newer than this server, which knows schemas up to "
            f"{self.newest}: start the version that made it, or restore a backup from before its "
            f"upgrade"
        )


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate upwards; creates the file and its folder if they are missing.

    A current schema is not changed and not locked. Blocks and runs an event loop: call it in a
    thread from a coroutine.

    Raises:
        StoreConfigError: the URL is not supported.
        StoreError: the database can't be opened, or a later version has made its schema.
    """
    parsed = parse_url(url)
    try:
        if (folder := _folder_of(parsed)) is not None:
            folder.mkdir(parents=True, exist_ok=True)
        state = asyncio.run(check(url))
        if state.is_newer:
            raise StoreError(f"database {parsed}: {state.newer_text}")
        if revision == "head" and state.is_current:
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
    """Read the schema version; changes nothing and takes no lock.

    Raises:
        StoreConfigError: the URL is not supported.
        StoreError: the database can't be read.
    """
    scripts = ScriptDirectory.from_config(_config(url))
    newest = scripts.get_current_head()
    if newest is None:
        raise RuntimeError("no migration is installed")
    folder = _folder_of(parse_url(url))
    if folder is not None and not folder.is_dir():
        raise StoreError(f"database {url}: there is no folder {folder}")
    if not is_made(url):  # SQLite would create the file
        return SchemaState(current=None, newest=newest)
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
    known = {script.revision for script in scripts.walk_revisions()}
    is_newer = current is not None and current not in known
    return SchemaState(current=current, newest=newest, is_newer=is_newer)


def is_made(url: str) -> bool:
    """Whether there may be a database: for SQLite, whether its file exists.

    Raises:
        StoreConfigError: the URL is not supported.
    """
    parsed = parse_url(url)
    return _folder_of(parsed) is None or Path(str(parsed.database)).exists()


def _folder_of(url: URL) -> Path | None:
    """Folder of a SQLite file; None for Postgres."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return None
    return Path(url.database).parent


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__file__).parent))
    config.attributes["url"] = url  # not an option: options interpolate %
    return config
