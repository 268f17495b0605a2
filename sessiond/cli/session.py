"""`sessiond session list|show|reset|close`: inspects and controls a server's sessions."""

import time
from typing import Annotated

import typer

from sessiond.cli.ask_server import (
    DEFAULT_URL,
    JsonOption,
    KeyOption,
    UrlOption,
    print_json,
    server_at,
    utf8,
)
from sessiond.cli.tables import ago, kv_text, plain_table, print_plain

app = typer.Typer(help="Inspect, reset and close a server's sessions.", no_args_is_help=True)

SessionId = Annotated[
    str,
    typer.Argument(metavar="SESSION", callback=utf8, help="Id of the session (conv_...)."),
]


@app.command("list")
def list_sessions(
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    state: Annotated[
        str | None,
        typer.Option(
            callback=utf8,
            help="State of the listed sessions: new, idle, running, parked, cold or closed.",
        ),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            callback=utf8,
            help="User whose sessions are listed (admins only; '*' = all users).",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the open sessions, latest activity first."""
    with server_at(url, api_key) as server:
        sessions = list(server.sessions(state=state, user=user))
    if as_json:
        print_json(sessions)
        return
    table = plain_table("session", "state", "tokens", "kept", "memory", "active")
    for session in sessions:
        table.add_row(
            str(session.get("id")),
            str(session.get("state")),
            str(session.get("tokens_total")),
            str(session.get("tokens_kept")),
            kv_text(session),
            ago(session.get("last_active_at"), time.time()),
        )
    print_plain(table if sessions else "no open sessions")


@app.command("show")
def show(
    session: SessionId,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one session with its turns."""
    with server_at(url, api_key) as server:
        found = server.whole_session(session)
    if as_json:
        print_json(found)
        return
    print_plain(
        f"{found.get('id')}  {found.get('state')}, {found.get('tokens_total')} tokens, "
        f"{found.get('tokens_kept')} of them kept ({kv_text(found)})"
    )
    table = plain_table("turn", "role", "start", "tokens", "kept", "status")
    for turn in found.get("turns", []):
        table.add_row(
            *(str(turn.get(key)) for key in ("response_id", "role", "start", "tokens", "kept")),
            str(turn.get("status")),
        )
    print_plain(table)


@app.command("reset")
def reset(
    session: SessionId,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Empty a session's context; its instructions stay."""
    with server_at(url, api_key) as server:
        found = server.reset(session)
    print_json(found) if as_json else typer.echo(f"{session} is empty")


@app.command("close")
def close(
    session: SessionId,
    url: UrlOption = DEFAULT_URL,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Close a session and free its memory."""
    with server_at(url, api_key) as server:
        answer = server.close(session)
    print_json(answer) if as_json else typer.echo(f"{session} is closed")
