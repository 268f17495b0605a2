"""`sessiond user quota`: shows and changes limits, in the database or at a server."""

import json

import pytest

from sessiond.store import migrate
from tests.cli.test_commands import run, server

QUOTA = {
    "user": "ann",
    "max_sessions": 3,
    "max_concurrent_turns": None,
    "max_resident_blocks": None,
    "max_host_bytes": None,
    "max_disk_bytes": None,
    "tokens_per_minute": None,
    "tokens_per_day": 500,
    "max_context_tokens": None,
    "max_priority": "high",
    "weight": 1.0,
    "usage": {"sessions": 1, "tokens_today": 20, "byte_seconds": 12.75},
}


@pytest.fixture
def db(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'a.db'}"
    migrate.upgrade(url)
    for name in ("ann", "bob"):
        assert run("user", "add", name, "--db", url).exit_code == 0
    return url


def test_limits_are_changed_one_by_one_in_the_database(db):
    options = (
        *("--max-sessions", "3", "--max-concurrent-turns", "4", "--max-resident-blocks", "5"),
        *("--max-host-bytes", "6", "--max-disk-bytes", "7", "--tokens-per-minute", "8"),
        *("--tokens-per-day", "9", "--max-context-tokens", "10", "--max-priority", "low"),
        *("--weight", "0.5"),
    )
    changed = run("user", "quota", "ann", *options, "--db", db, "--json")
    assert changed.exit_code == 0, changed.output
    found = json.loads(changed.output)
    limits = {name: found[name] for name in QUOTA if name not in {"user", "usage"}}
    assert list(limits.values()) == [3, 4, 5, 6, 7, 8, 9, 10, "low", 0.5]
    run("user", "quota", "ann", "--max-sessions", "none", "--db", db)
    found = json.loads(run("user", "quota", "ann", "--db", db, "--json").output)
    assert {name: found[name] for name in limits} == limits | {"max_sessions": None}
    other = json.loads(run("user", "quota", "bob", "--db", db, "--json").output)
    assert (other["tokens_per_day"], other["weight"]) == (None, 1.0)


def test_a_reader_sees_limits_and_what_was_taken(db):
    shown = run("user", "quota", "ann", "--tokens-per-day", "500", "--db", db).output.splitlines()
    assert shown[0].startswith("user user_")
    assert any(line.split() == ["tokens_per_day", "500"] for line in shown)
    assert any(line.split() == ["max_sessions", "no", "limit"] for line in shown)
    assert any(line.split() == ["tokens_today", "0"] for line in shown)


def test_a_name_that_nobody_has_is_refused_but_everyone_is_local_without_keys(db):
    result = run("user", "quota", "anne", "--max-sessions", "1", "--db", db)
    assert result.exit_code == 1
    assert "anne" in result.output
    assert run("user", "quota", "local", "--max-sessions", "1", "--db", db).exit_code == 0
    found = json.loads(run("user", "quota", "local", "--db", db, "--json").output)
    assert (found["user"], found["max_sessions"]) == ("local", 1)


def test_a_server_is_asked_where_one_is_named():
    answers = {f"{method} /admin/users/an%2Fn/quota": (200, QUOTA) for method in ("GET", "PUT")}
    with server(answers) as (url, asked):
        shown = run("user", "quota", "an/n", "--url", url)
        changed = run("user", "quota", "an/n", "--max-sessions", "3", "--url", url, "--json")
    assert asked == list(answers)
    assert "byte_seconds           13" in shown.output
    assert json.loads(changed.output) == QUOTA


def test_a_refusal_of_the_server_is_told():
    with server({}) as (url, _):
        result = run("user", "quota", "ann", "--url", url)
    assert result.exit_code == 1
    assert "the server answered 404" in result.output


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--tokens-per-day", "many"),
        ("--tokens-per-minute", "1.5"),
        ("--max-priority", "urgent"),
        ("--weight", "0"),
        ("--max-sessions", "-1"),
    ],
)
def test_a_wrong_limit_is_wrong_usage_and_named(db, option, value):
    result = run("user", "quota", "ann", option, value, "--db", db)
    assert result.exit_code == 2
    assert option in result.output
    assert value in result.output
    assert "must be" in result.output


def test_a_database_that_was_not_migrated_is_told(tmp_path):
    result = run("user", "quota", "ann", "--db", f"sqlite+aiosqlite:///{tmp_path / 'new.db'}")
    assert result.exit_code == 1
    assert "sessiond db upgrade" in result.output
    assert "Traceback" not in result.output
