"""Shared parts of commands that access the database directly: `--db` and accounts."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sessiond.cli.fail import WRONG_USAGE, fail
from sessiond.errors import RequestError
from sessiond.setting_errors import SettingError, load_settings
from sessiond.settings import Settings

if TYPE_CHECKING:
    from sessiond.accounts import Accounts  # imports SQLAlchemy, which is slow
    from sessiond.store.store import Store

DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="TEXT", help=Settings.model_fields["db"].description),
]

T = TypeVar("T")


def database_url(db: str | None) -> str:
    """Return the database URL of `--db` or the settings; exit code 2 if it is invalid."""
    try:
        return load_settings({} if db is None else {"db": db}).db
    except SettingError as error:
        fail(error, WRONG_USAGE)


def on_accounts(
    db: str | None, work: "Callable[[Accounts], Awaitable[T]]", *, make: bool = False
) -> T:
    """Run `work` on the users and keys of a database; the server need not run.

    The schema must be the newest; `make` creates it in a new database. Errors end the command:
    exit code 2 for an invalid value, else 1.
    """
    return on_store(db, lambda _, accounts: work(accounts), make=make)


def on_store(
    db: str | None, work: "Callable[[Store, Accounts], Awaitable[T]]", *, make: bool = False
) -> T:
    """Like `on_accounts`, with the whole store as well."""
    from sessiond.store.errors import StoreConfigError, StoreError

    url = database_url(db)
    try:
        _need_schema(url, make=make)
        return asyncio.run(_run(url, work))
    except StoreConfigError as error:
        fail(error, WRONG_USAGE)
    except StoreError as error:
        fail(error)
    except RequestError as error:
        fail(error, WRONG_USAGE if error.code == "invalid_value" else 1)


async def _run(url: str, work: "Callable[[Store, Accounts], Awaitable[T]]") -> T:
    from sessiond.accounts import Accounts
    from sessiond.store.store import Store

    store = Store(url)
    try:
        accounts = Accounts(
            store.accounts,
            clock=time.time,
            new_id=lambda prefix: f"{prefix}_{secrets.token_hex(16)}",
        )
        return await work(store, accounts)
    finally:
        await store.close()


def _need_schema(url: str, *, make: bool) -> None:
    from sessiond.store.migrate import check, is_made, upgrade

    if make and not is_made(url):
        upgrade(url)
        return
    state = asyncio.run(check(url))
    if state.is_newer or (state.current is None and make):
        upgrade(url)  # which refuses a newer one
    elif not state.is_current:
        fail("the database's schema is not the newest: run `sessiond db upgrade`")
