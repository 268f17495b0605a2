"""`sessiond db upgrade|check`: the database's schema."""

import asyncio

import typer

from sessiond.cli.ask_server import JsonOption, print_json
from sessiond.cli.database import DbOption, database_url
from sessiond.cli.fail import FAILED, WRONG_USAGE, fail

app = typer.Typer(help="Bring the database's schema up to date.", no_args_is_help=True)


@app.command("upgrade")
def upgrade(db: DbOption = None) -> None:
    """Migrate to the newest schema; creates the database if it is missing."""
    from sessiond.store.errors import StoreConfigError, StoreError
    from sessiond.store.migrate import upgrade as migrate

    try:
        migrate(database_url(db))
    except StoreConfigError as error:
        fail(error, WRONG_USAGE)
    except StoreError as error:
        fail(error)
    typer.echo("the schema is up to date")


@app.command("check")
def check(db: DbOption = None, as_json: JsonOption = False) -> None:
    """Check whether the schema is up to date; exit code 1 if not. Changes nothing."""
    from sessiond.store.errors import StoreConfigError, StoreError
    from sessiond.store.migrate import check as read_state

    try:
        state = asyncio.run(read_state(database_url(db)))
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
    elif state.is_newer:
        typer.echo(f"the database: {state.newer_text}")
    else:
        current = state.current or "none"
        typer.echo(
            f"the schema is {current}, the newest is {state.newest}: run `sessiond db upgrade`"
        )
    raise typer.Exit(0 if state.is_current else FAILED)
