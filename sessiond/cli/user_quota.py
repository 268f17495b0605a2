"""`sessiond user quota`: a user's limits and usage, at a server or in its database."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sessiond.api.protocol.quotas import decode_limits, quota_object
from sessiond.cli.ask_server import JsonOption, KeyOption, print_json, server_at, utf8
from sessiond.cli.database import DbOption, on_store
from sessiond.cli.fail import WRONG_USAGE, fail
from sessiond.errors import RequestError
from sessiond.quota import QUOTA_FIELDS

if TYPE_CHECKING:
    from sessiond.accounts import Accounts
    from sessiond.store.store import Store

_ACTOR = "command line"
_LOCAL = "local"  # the only user without --auth keys; exists from its first turn on
_NONE = "none"

UserName = Annotated[
    str,
    typer.Argument(
        metavar="NAME", callback=utf8, help="Name or id of the user; with --url the id."
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--url", callback=utf8, help="URL of a running server to use instead of the database."
    ),
]


def _limit(what: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=metavar, help=f'{what}; "none" for no limit.')


def quota(  # noqa: PLR0913, PLR0917 -- one option for each limit
    name: UserName,
    max_sessions: Annotated[str | None, _limit("Maximum number of open sessions")] = None,
    max_concurrent_turns: Annotated[
        str | None, _limit("Maximum number of concurrent turns")
    ] = None,
    max_resident_blocks: Annotated[
        str | None, _limit("Maximum number of KV blocks on the device, over all sessions")
    ] = None,
    max_host_bytes: Annotated[str | None, _limit("Maximum KV in the host tier in bytes")] = None,
    max_disk_bytes: Annotated[str | None, _limit("Maximum KV in the disk tier in bytes")] = None,
    tokens_per_minute: Annotated[
        str | None, _limit("Maximum tokens computed and generated per UTC minute")
    ] = None,
    tokens_per_day: Annotated[
        str | None, _limit("Maximum tokens computed and generated per UTC day")
    ] = None,
    max_context_tokens: Annotated[
        str | None, _limit("Maximum tokens of a session, including the current reply")
    ] = None,
    max_priority: Annotated[
        str | None, _limit("Highest priority of the user's turns", "low|normal|high")
    ] = None,
    weight: Annotated[
        str | None,
        typer.Option(
            metavar="X", help="Share of a busy engine, 0.01 to 100, relative to users of weight 1."
        ),
    ] = None,
    db: DbOption = None,
    url: ServerOption = None,
    api_key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a user's limits and usage; change the given limits."""
    given = dict(locals())
    limits = _parse({field: given[field] for field in QUOTA_FIELDS})
    if url is None:
        found = _in_database(db, name, limits)
    else:
        found = _at_server(url, api_key, name, limits)
    print_json(found) if as_json else _show(found)


def _parse(options: Mapping[str, str | None]) -> dict[str, Any]:
    pairs: dict[str, Any] = {}
    for field, text in options.items():
        if text is not None:
            pairs[field] = None if text == _NONE else _value(text)
    try:
        return decode_limits(pairs)
    except RequestError as error:
        fail(f"--{str(error.param).replace('_', '-')}: {error.message}", WRONG_USAGE)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _at_server(
    url: str, api_key: str | None, name: str, limits: Mapping[str, Any]
) -> dict[str, Any]:
    with server_at(url, api_key) as server:
        return server.set_quota(name, limits) if limits else server.quota(name)


def _in_database(db: str | None, name: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    async def work(store: "Store", accounts: "Accounts") -> dict[str, Any]:
        user_id = _LOCAL if name == _LOCAL else (await accounts.named(name)).id
        now = time.time()
        if limits:
            await store.quotas.set_quota(user_id, limits, now)
            await accounts.write_down(_ACTOR, "user.quota", user_id, **limits)
        return quota_object(user_id, (await store.quotas.account(user_id)).at(now))

    return on_store(db, work)


def _show(found: Mapping[str, Any]) -> None:
    typer.echo(f"user {found['user']}")
    for field in QUOTA_FIELDS:
        value = found[field]
        typer.echo(f"  {field:<22} {'no limit' if value is None else value}")
    typer.echo("usage")
    for field, value in found["usage"].items():
        typer.echo(f"  {field:<22} {value:.0f}")
