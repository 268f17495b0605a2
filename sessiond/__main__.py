"""The sessiond command."""

import io
import sys
from typing import Annotated

import typer

from sessiond.cli import db, model, session, user
from sessiond.cli.capacity import capacity
from sessiond.cli.chat import chat
from sessiond.cli.doctor import doctor
from sessiond.cli.plan import PLANNED_SETTINGS, plan
from sessiond.cli.serve import serve
from sessiond.cli.setting_flags import with_setting_flags
from sessiond.cli.simulate import simulate
from sessiond.cli.top.command import top
from sessiond.version import product_version


def build_cli() -> typer.Typer:
    """The command with all its subcommands."""
    cli = typer.Typer(
        name="sessiond",
        help="A conversation server that keeps each conversation's KV cache alive between turns.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its table truncates flag names
    )
    cli.callback()(_global_options)
    cli.command("serve")(with_setting_flags(serve))
    cli.command("chat")(chat)
    cli.add_typer(model.app, name="model")
    cli.add_typer(session.app, name="session")
    cli.add_typer(user.app, name="user")
    cli.add_typer(db.app, name="db")
    cli.command("doctor")(doctor)
    cli.command("plan")(with_setting_flags(plan, PLANNED_SETTINGS))
    cli.command("simulate")(simulate)
    cli.command("capacity")(capacity)
    cli.command("top")(top)
    return cli


def main() -> None:
    """Run the command; exit codes: 0 success, 1 failure, 2 usage error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the locale may lack a character of a reply
    build_cli()()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sessiond {product_version()}")
        raise typer.Exit


def _global_options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Options before the subcommand."""


if __name__ == "__main__":
    main()
