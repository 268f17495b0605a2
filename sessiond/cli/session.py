"""`sessiond session list|show|reset|close`: what a running server holds of conversations."""

import time
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from engine.byte_size import format_bytes
from sessiond.cli.ask_server import DEFAULT_URL, JsonOption, UrlOption, print_json, server_at

app = typer.Typer(help="Look at a server's sessions, empty or close them.", no_args_is_help=True)

SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id (conv_...).")]


@app.command("list")
def list_sessions(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the open sessions, latest activity first."""
    with server_at(url) as server:
        sessions = list(server.sessions())
    if as_json:
        print_json(sessions)
        return
    table = _table("session", "state", "tokens", "kept", "memory", "active")
    for session in sessions:
        table.add_row(
            str(session.get("id")),
            str(session.get("state")),
            str(session.get("tokens_total")),
            str(session.get("tokens_kept")),
            _device_bytes(session),
            _ago(session.get("last_active_at"), time.time()),
        )
    _print(table if sessions else "no open sessions")


@app.command("show")
def show(session: SessionId, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Show one session with its turns."""
    with server_at(url) as server:
        found = server.session(session)
    if as_json:
        print_json(found)
        return
    _print(
        f"{found.get('id')}  {found.get('state')}, {found.get('tokens_total')} tokens, "
        f"{found.get('tokens_kept')} of them kept ({_device_bytes(found)})"
    )
    table = _table("turn", "role", "start", "tokens", "kept", "status")
    for turn in found.get("turns", []):
        table.add_row(
            *(str(turn.get(key)) for key in ("response_id", "role", "start", "tokens", "kept")),
            str(turn.get("status")),
        )
    _print(table)


@app.command("reset")
def reset(session: SessionId, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """Empty a session's context; its instructions stay."""
    with server_at(url) as server:
        found = server.reset(session)
    print_json(found) if as_json else typer.echo(f"{session} is empty")


@app.command("close")
def close(session: SessionId, url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """End a session and give back its memory."""
    with server_at(url) as server:
        answer = server.close(session)
    print_json(answer) if as_json else typer.echo(f"{session} is closed")


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="dim", pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=True)
    return table


def _print(shown: Table | str) -> None:
    """Print; where no terminal sets a width, nothing is cut, for scripts read it."""
    console = Console(highlight=False)
    console.print(shown, soft_wrap=not console.is_terminal)


def _device_bytes(session: dict[str, Any]) -> str:
    return format_bytes(int(session.get("kv_bytes", {}).get("device", 0)))


def _ago(unix_s: float | None, now_s: float) -> str:
    """How long ago, in the largest unit that is at least one."""
    if unix_s is None:
        return ""
    ago_s = max(0, int(now_s - unix_s))
    for unit, seconds in (("d", 86400), ("h", 3600), ("min", 60)):
        if ago_s >= seconds:
            return f"{ago_s // seconds} {unit} ago"
    return f"{ago_s} s ago"
