"""`sessiond user`: works on the database alone; the first admin is made by it."""

import asyncio
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from sessiond.__main__ import build_cli
from sessiond.api.auth import LOCAL, KeyAuth
from sessiond.api_keys import read_api_key
from sessiond.store import migrate
from sessiond.store.store import Store


@pytest.fixture
def url(tmp_path):
    return f"sqlite+aiosqlite:///{tmp_path / 'a folder' / 'sessiond.db'}"


@pytest.fixture
def run(url):
    return lambda *words: CliRunner().invoke(build_cli(), ["user", *words, "--db", url])


def caller(url, key):
    async def ask():
        store = Store(url)
        try:
            return await KeyAuth(store.accounts).caller(key)
        finally:
            await store.close()

    return asyncio.run(ask())


def audits(url):
    async def ask():
        store = Store(url)
        try:
            rows, _ = await store.accounts.list_audits(limit=100, before=None)
        finally:
            await store.close()
        return [(row.audit.actor, row.audit.action) for row in reversed(rows)]

    return asyncio.run(ask())


def test_the_first_admin_is_added_to_a_database_that_is_not_there_yet(run, url):
    added = run("add", "ada", "--role", "admin")
    assert added.exit_code == 0, added.output
    key = added.stdout.strip()  # nothing else: a script may take it as it is
    assert read_api_key(key)
    assert "ada (admin) is user_" in added.stderr
    who = caller(url, key)
    assert who.is_admin
    assert who.user_id in added.stderr


def test_a_user_can_be_added_without_a_key_and_is_listed(run):
    added = run("add", "bob", "--no-key")
    assert (added.exit_code, added.stderr) == (0, "")
    assert added.stdout.startswith("bob (user) is user_")
    listed = run("list")
    assert listed.stdout.split()[:5] == ["user", "id", "role", "added", "removed"]
    assert "bob" in listed.stdout
    [user] = json.loads(run("list", "--json").stdout)
    assert (user["name"], user["role"], user["revoked_at"]) == ("bob", "user", None)


def test_everything_can_be_said_in_json(run, url):
    user = json.loads(run("add", "ada", "--json").stdout)
    first = user["key"]
    assert caller(url, first["key"]).user_id == user["id"]
    second = json.loads(run("key", "add", "ada", "--json").stdout)
    third = json.loads(run("key", "rotate", first["id"], "--json").stdout)
    listed = json.loads(run("key", "list", user["id"], "--json").stdout)
    assert [key["id"] for key in listed] == [first["id"], second["id"], third["id"]]
    assert [key["revoked_at"] is None for key in listed] == [False, True, True]
    assert all("key" not in key and "hash" not in key for key in listed)
    assert json.loads(run("key", "revoke", second["id"], "--json").stdout)["deleted"]
    assert json.loads(run("rm", "ada", "--json").stdout)["id"] == user["id"]
    assert [row[1] for row in audits(url)] == [
        "user.add", "key.add", "key.add", "key.rotate", "key.revoke", "user.remove",
    ]  # fmt: skip
    assert {row[0] for row in audits(url)} == {"command line"}


def test_keys_are_listed_for_people(run):
    key = read_api_key(run("add", "ada").stdout.strip())
    listed = run("key", "list", "ada").stdout
    assert key.id in listed
    assert key.secret not in listed
    assert run("key", "revoke", key.id).stdout == f"{key.id} is revoked\n"
    run("add", "bob", "--no-key")
    assert "bob has no keys" in run("key", "list", "bob").stdout


def test_conversations_of_the_time_before_keys_can_be_given_a_key(run, url):
    async def come_without_a_key():
        store = Store(url)
        await store.set_user_policy(LOCAL.user_id, None, 1.0)  # as with a first turn
        await store.close()

    migrate.upgrade(url)
    asyncio.run(come_without_a_key())
    key = run("key", "add", "local").stdout.strip()
    who = caller(url, key)
    assert (who.user_id, who.is_admin) == (LOCAL.user_id, False)
    assert len(who.salt) == 32


def test_a_database_without_users_says_what_to_do(run, url, tmp_path):
    migrate.upgrade(url)
    assert "sessiond user add NAME --role admin" in run("list").stdout
    assert json.loads(run("list", "--json").stdout) == []


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("add", "a b"), 2, "name must be up to 64"),
        (("add", "ada"), 2, "another user has"),
        (("add", "bob", "--role", "king"), 2, "king"),
        (("rm", "nobody"), 1, "there is no user 'nobody'"),
        (("key", "add", "nobody"), 1, "there is no user"),
        (("key", "list", "nobody"), 1, "there is no user"),
        (("key", "revoke", "0123"), 1, "there is no active key '0123'"),
        (("key", "rotate", "0123"), 1, "there is no active key"),
        (("sing",), 2, "sing"),
    ],
)
def test_what_goes_wrong_is_told_with_its_exit_code(run, words, code, said):
    run("add", "ada")
    result = run(*words)
    assert result.exit_code == code
    assert said in result.output
    assert "Traceback" not in result.output


def test_only_add_makes_a_database_and_none_is_migrated_behind_a_servers_back(run, url, tmp_path):
    missing = run("list")
    assert (missing.exit_code, "no folder" in missing.output) == (1, True)
    assert not (tmp_path / "a folder").exists()
    migrate.upgrade(url, "0002")
    for words in (("list",), ("add", "ada")):
        old = run(*words)
        assert old.exit_code == 1
        assert "`sessiond db upgrade`" in old.output


def test_a_bad_url_is_wrong_usage():
    result = CliRunner().invoke(build_cli(), ["user", "list", "--db", "mysql://x/y"])
    assert result.exit_code == 2
    assert "db must be sqlite+aiosqlite:///FILE" in result.output


def test_t51_several_that_come_first_at_once_make_one_database_with_all_of_them(url, run):
    """T51: three replicas found no tables and each made them."""
    command = [sys.executable, "-m", "sessiond", "user", "add"]
    started = [
        subprocess.Popen(
            [*command, name, "--db", url], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for name in ("ada", "bob", "eve")
    ]
    errors = [process.communicate()[1].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], errors
    users = json.loads(run("list", "--json").stdout)
    assert sorted(user["name"] for user in users) == ["ada", "bob", "eve"]
