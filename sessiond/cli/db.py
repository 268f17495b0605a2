"""`sessiond db upgrade|check`: the database's schema."""

import asyncio
from typing import Annotated

import typer

from sessiond.cli.ask_server import JsonOption, print_json
from sessiond.cli.fail import FAILED, WRONG_USAGE, fail
from sessiond.setting_errors import SettingError, load_settings
from sessiond.settings import Settings

app = typer.Typer(help="Bring the database's schema up to date.", no_args_is_help=True)

DbOption = Annotated[
    str | None,
    typer.Option("--db", metavar="TEXT", help=Settings.model_fields["db"].description),
]


@app.command("upgrade")
def upgrade(db: DbOption = None) -> None:
    """Migrate to the newest schema; makes the database if it is missing."""
    from sessiond.store.errors import StoreConfigError, StoreError
    from sessiond.store.migrate import upgrade as migrate

    try:
        migrate(_url(db))
    except StoreConfigError as error:
        fail(error, WRONG_USAGE)
    except StoreError as error:
        fail(error)
    typer.echo("the schema is up to date")


@app.command("check")
def check(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Say whether the schema is up to date; exit code 1 if not. Changes nothing."""
    from sessiond.store.errors import StoreConfigError, StoreError
    from sessiond.store.migrate import check as look

    try:
        state = asyncio.run(look(_url(db)))
    except StoreConfigError as error:
        fail(error, WRONG_USAGE)
    except StoreError as error:
        fail(error)
    if as_json:
        print_json(
            {"current": state.current, "newest": state.newest, "up_to_date": state.is_current}
        )
    elif state.is_current:
        typer.echo(f"the schema is up to date ({state.newest})")
    else:
        current = state.current or "none"
        typer.echo(f"the schema is {current}, the newest is {state.newest}: `sessiond db upgrade`")
    raise typer.Exit(0 if state.is_current else FAILED)


def _url(db: str | None) -> str:
    try:
        return load_settings({} if db is None else {"db": db}).db
    except SettingError as error:
        fail(error, WRONG_USAGE)
