"""`sessiond user add|list|rm` and `sessiond user key …`: change the database directly.

A server on the same database notices a change within a second.
"""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from sessiond.api.protocol.accounts import issued_object, key_object, user_object
from sessiond.cli.ask_server import JsonOption, print_json
from sessiond.cli.database import DbOption, on_accounts
from sessiond.cli.tables import ago, plain_table, print_plain
from sessiond.cli.user_quota import quota
from sessiond.store.account_records import Issued, KeyRecord, UserRecord, UserRole

if TYPE_CHECKING:
    from sessiond.accounts import Accounts  # imports SQLAlchemy, which is slow

_ACTOR = "command line"
_PAGE = 100

app = typer.Typer(help="Manage users and their API keys in the database.", no_args_is_help=True)
keys = typer.Typer(help="Create, list, rotate and revoke a user's keys.", no_args_is_help=True)
app.add_typer(keys, name="key")
app.command("quota")(quota)

User = Annotated[str, typer.Argument(metavar="USER", help="Name or id (user_...) of the user.")]
KeyId = Annotated[
    str, typer.Argument(metavar="KEY", help="Id of the key: the part between sk- and the dot.")
]


@app.command("add")
def add(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the user, which must be unused.")
    ],
    role: Annotated[UserRole, typer.Option(help="Role of the user.")] = "user",
    key: Annotated[bool, typer.Option(help="Create a first key, too.")] = True,
    db: DbOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a user and print its first key, which is shown only once.

    Creates the database if it is missing.
    """

    async def work(accounts: "Accounts") -> tuple[UserRecord, Issued | None]:
        return await accounts.add_user(_ACTOR, name, role, with_key=key)

    user, issued = on_accounts(db, work, make=True)
    if as_json:
        print_json(user_object(user) | {"key": issued_object(issued) if issued else None})
        return
    typer.echo(f"{user.name} ({user.role}) is {user.id}", err=issued is not None)
    if issued is not None:
        _show_key(issued)


@app.command("list")
def list_users(db: DbOption = None, as_json: JsonOption = False) -> None:
    """List the users, removed ones included."""

    async def work(accounts: "Accounts") -> list[UserRecord]:
        found: list[UserRecord] = []
        more = True
        while more:
            after = found[-1].id if found else None
            page, more = await accounts.users(limit=_PAGE, after=after)
            found += page
        return found

    users = on_accounts(db, work)
    if as_json:
        print_json([user_object(user) for user in users])
        return
    table = plain_table("user", "id", "role", "added", "removed")
    now = time.time()
    for user in users:
        added, removed = ago(user.created_at, now), ago(user.revoked_at, now)
        table.add_row(user.name or "", user.id, user.role, added, removed)
    print_plain(table if users else "no users: `sessiond user add NAME --role admin`")


@app.command("rm")
def remove(user: User, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Remove a user and revoke its keys; its conversations stay in the database."""

    async def work(accounts: "Accounts") -> str:
        found = await accounts.named(user)
        await accounts.remove_user(_ACTOR, found.id)
        return found.id

    user_id = on_accounts(db, work)
    answer = {"id": user_id, "object": "user.deleted", "deleted": True}
    print_json(answer) if as_json else typer.echo(f"{user} is removed and all its keys are revoked")


@keys.command("add")
def add_key(user: User, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Create another key for a user and print it once."""

    async def work(accounts: "Accounts") -> Issued:
        return await accounts.add_key(_ACTOR, (await accounts.named(user)).id)

    issued = on_accounts(db, work)
    print_json(issued_object(issued)) if as_json else _show_key(issued)


@keys.command("list")
def list_keys(user: User, db: DbOption = None, as_json: JsonOption = False) -> None:
    """List a user's keys, revoked ones included; secrets are not stored."""

    async def work(accounts: "Accounts") -> tuple[KeyRecord, ...]:
        return await accounts.keys((await accounts.named(user)).id)

    found = on_accounts(db, work)
    if as_json:
        print_json([key_object(key) for key in found])
        return
    table = plain_table("key", "made", "revoked")
    now = time.time()
    for key in found:
        table.add_row(key.id, ago(key.created_at, now), ago(key.revoked_at, now))
    print_plain(table if found else f"{user} has no keys: `sessiond user key add {user}`")


@keys.command("rotate")
def rotate_key(key: KeyId, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Revoke a key and print a new one for its user."""

    async def work(accounts: "Accounts") -> Issued:
        found = await accounts.key(key)
        return await accounts.rotate_key(_ACTOR, found.user_id, key)

    issued = on_accounts(db, work)
    print_json(issued_object(issued)) if as_json else _show_key(issued)


@keys.command("revoke")
def revoke_key(key: KeyId, db: DbOption = None, as_json: JsonOption = False) -> None:
    """Revoke a key and close its sockets."""

    async def work(accounts: "Accounts") -> None:
        found = await accounts.key(key)
        await accounts.revoke_key(_ACTOR, found.user_id, key)

    on_accounts(db, work)
    answer = {"id": key, "object": "key.deleted", "deleted": True}
    print_json(answer) if as_json else typer.echo(f"{key} is revoked")


def _show_key(issued: Issued) -> None:
    """Print the key alone to standard output, for `KEY=$(sessiond user key add ada)`."""
    typer.echo("The key is shown this once:", err=True)
    typer.echo(issued.key.text)
