"""What the commands that work on the database itself share: `--db`, and users' accounts in it."""

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
    from sessiond.accounts import Accounts  # with it comes SQLAlchemy, which takes its time
    from sessiond.store.store import Store

DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="TEXT", help=Settings.model_fields["db"].description),
]

T = TypeVar("T")


def database_url(db: str | None) -> str:
    """The database of `--db`, else of the settings; bad ones end the command with exit code 2."""
    try:
        return load_settings({} if db is None else {"db": db}).db
    except SettingError as error:
        fail(error, WRONG_USAGE)


def on_accounts(
    db: str | None, work: "Callable[[Accounts], Awaitable[T]]", *, make: bool = False
) -> T:
    """Run `work` on the users and keys of a database; the server need not run.

    The schema has to be the newest. With `make` a database without one is given one. What goes
    wrong ends the command: exit code 2 for a bad value, else 1.
    """
    return on_store(db, lambda _, accounts: work(accounts), make=make)


def on_store(
    db: str | None, work: "Callable[[Store, Accounts], Awaitable[T]]", *, make: bool = False
) -> T:
    """The same with the whole store beside them."""
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
    if state.current is None and make:
        upgrade(url)
    elif not state.is_current:
        fail("the database's schema is not the newest: `sessiond db upgrade`")
