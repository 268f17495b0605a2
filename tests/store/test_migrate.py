"""Migrations go up, down and up, and make what the schema says, on either database."""

import asyncio
import subprocess
import sys
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sessiond.store import migrate
from sessiond.store.errors import StoreConfigError, StoreError
from sessiond.store.records import SessionHints
from sessiond.store.schema import metadata
from sessiond.store.store import Store
from tests.store import crowd

SERVERS = 4
# As a server does it at its start; the log says which migrations it ran.
UPGRADE = """
import logging, sys
logging.basicConfig(format="%(message)s", level=logging.INFO)
from sessiond.store.migrate import upgrade
sys.stdin.readline()
upgrade(sys.argv[1])
"""


@contextmanager
def connected(url):
    engine = sa.create_engine(url.replace("+aiosqlite", ""))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def tables_of(url):
    with connected(url) as connection:
        return set(sa.inspect(connection).get_table_names())


def salts_of(url):
    with connected(url) as connection:
        return [salt for (salt,) in connection.execute(sa.text("SELECT salt FROM users"))]


def revisions_of_log(log):
    return [line.split()[4].rstrip(",") for line in log.splitlines() if "Running upgrade" in line]


def test_up_down_and_up_again(empty_url):
    migrate.upgrade(empty_url)
    assert tables_of(empty_url) == {*metadata.tables, "alembic_version"}
    migrate.downgrade(empty_url, "base")
    assert tables_of(empty_url) == {"alembic_version"}
    migrate.upgrade(empty_url)
    assert tables_of(empty_url) == {*metadata.tables, "alembic_version"}
    migrate.upgrade(empty_url)  # nothing to do


def test_migrations_make_exactly_the_schema(empty_url):
    migrate.upgrade(empty_url)
    with connected(empty_url) as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        differences = compare_metadata(context, metadata)
        checks = {
            table: {check["name"] for check in sa.inspect(connection).get_check_constraints(table)}
            for table in metadata.tables
        }
    assert differences == []
    assert checks["turns"] == {"ck_turns_status"}


def test_check_tells_an_empty_database_from_a_current_one(empty_url):
    before = asyncio.run(migrate.check(empty_url))
    assert before.current is None
    assert not before.is_current
    migrate.upgrade(empty_url)
    assert asyncio.run(migrate.check(empty_url)).is_current


def test_r09_a_database_from_a_newer_version_is_refused_with_what_to_do(empty_url):
    migrate.upgrade(empty_url)
    with connected(empty_url) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    state = asyncio.run(migrate.check(empty_url))
    assert (state.is_newer, state.is_current, state.current) == (True, False, "9999")
    with pytest.raises(StoreError, match=r"schema 9999 is newer than this server.*backup"):
        migrate.upgrade(empty_url)


def test_a_sqlite_file_is_made_with_its_folder(tmp_path):
    url = f"sqlite+aiosqlite:///{tmp_path / 'new folder' / 'sessiond.db'}"
    migrate.upgrade(url)
    assert asyncio.run(migrate.check(url)).is_current


def test_t51_of_several_servers_that_start_at_once_one_migrates(empty_url):
    servers = [
        subprocess.Popen(
            [sys.executable, "-c", UPGRADE, empty_url],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for _ in range(SERVERS)
    ]
    for server in servers:  # all have imported what they need when the first begins
        server.stdin.write(b"\n")
        server.stdin.flush()
    logs = [server.communicate()[1].decode() for server in servers]
    assert [server.returncode for server in servers] == [0] * SERVERS, logs
    ran = [revisions_of_log(log) for log in logs]
    assert sorted(map(len, ran))[:-1] == [0] * (SERVERS - 1), ran
    state = asyncio.run(migrate.check(empty_url))
    assert state.is_current
    assert max(ran, key=len)[-1] == state.newest


def test_t51_a_current_schema_is_left_alone_without_a_lock(url):
    """A server that only checks must not wait for one that migrates, or for any other writer."""
    with connected(url) as connection:
        connection.execute(sa.text("INSERT INTO users (id, created_at) VALUES ('ann', 1.0)"))
        if connection.dialect.name == "postgresql":
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({0x5E5510AD})"))
        migrate.upgrade(url)


def test_a_database_whose_driver_is_not_installed_is_refused_with_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(
        StoreConfigError, match=r"psycopg comes with the extra \[postgres\]"
    ) as caught:
        migrate.upgrade("postgresql+psycopg://ada:secret@127.0.0.1:1/x")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["sqlite+aiosqlite://", "sqlite:///x.db", "mysql://h/n", "no url", "postgresql://h/n"]
)
def test_a_url_that_cannot_work_is_refused_with_what_can(url):
    with pytest.raises(StoreConfigError, match=r"must be sqlite\+aiosqlite:///FILE"):
        migrate.upgrade(url)


ROWS_OF_0001 = """
INSERT INTO users VALUES ('ann', 1.0), ('bob', 1.0);
INSERT INTO system_prompts VALUES ('sys_1', 'ann', NULL, NULL, :front, 2);
INSERT INTO sessions VALUES ('conv_1', 'ann', 'm', 9, 'sys_1', 'resp_1', 5, 'release', 'normal',
    'exact', '{}', 1.0, 1.0, NULL);
INSERT INTO turns (id, user_id, session_id, system_prompt_id, message_id, model, status, generate,
    awaits_reply, request, seed, start_tokens, input_tokens, context_tokens, input_ids, reply_ids,
    new_tokens, output_tokens, created_at)
VALUES ('resp_1', 'ann', 'conv_1', 'sys_1', 'msg_1', 'm', 'completed', true, false, '{}', 7, 2, 2,
    5, :input, :reply, 2, 1, 1.0)
"""
IDS = {"front": b"\1\0\0\0\2\0\0\0", "input": b"\3\0\0\0\4\0\0\0", "reply": b"\5\0\0\0"}


def test_rows_of_the_first_version_survive_the_way_up_and_down(empty_url):
    """A context of then is seen whole now, and can be used by either version."""
    migrate.upgrade(empty_url, "0001")
    with connected(empty_url) as connection:
        for statement in ROWS_OF_0001.split(";"):
            used = {name: ids for name, ids in IDS.items() if f":{name}" in statement}
            connection.execute(sa.text(statement), used)

    async def read():
        store = Store(empty_url)
        ids = await store.context_ids("ann", "sys_1", "resp_1")
        layout = await store.layout("ann", 2, "resp_1")
        record = await store.find_session("ann", "conv_1")
        await store.close()
        return ids, layout, record

    migrate.upgrade(empty_url)
    ids, layout, record = asyncio.run(read())
    assert ids == [1, 2, 3, 4, 5]
    assert (layout.tokens, layout.context, layout.fidelity) == (5, "full", "exact")
    assert (record.hints, record.context_policy) == (SessionHints(), None)
    assert len(set(salts_of(empty_url)) - {None}) == 2  # users of then get salts, each its own
    migrate.downgrade(empty_url, "0001")
    with connected(empty_url) as connection:
        found = connection.execute(sa.text("SELECT id, context_tokens FROM turns")).all()
    assert found == [("resp_1", 5)]
    migrate.upgrade(empty_url)
    assert asyncio.run(read())[0] == ids


def test_of_closed_sessions_of_then_only_what_others_are_built_on_is_left(empty_url):
    """Rows of those of which nothing is left go a day after their end."""
    migrate.upgrade(empty_url, "0006")
    crowd.fill(empty_url, 20)
    run(
        empty_url,
        "UPDATE sessions SET closed_at = NULL, tip_id = 'turn_0_1' WHERE id = 'conv_5'",  # a fork
        "UPDATE turns SET parent_id = 'turn_1_0', summary_id = 'sum_1' WHERE id = 'turn_3_0'",
        "UPDATE sessions SET tip_id = NULL WHERE closed_at IS NOT NULL",
    )
    all_sessions = ids(empty_url, "sessions")
    closed = {f"conv_{n}" for n in range(20) if crowd.is_closed(n)}
    built_on = {"turn_0_0", "turn_0_1", "turn_1_0"}
    of_open = {f"turn_{n}_{at}" for n in range(20) if not crowd.is_closed(n) for at in range(2)}
    for _ in range(2):
        migrate.upgrade(empty_url)
        assert ids(empty_url, "sessions") == all_sessions
        assert ids(empty_url, "turns") == of_open | built_on
        assert ids(empty_url, "items", "turn_id") == of_open | built_on
        assert "sum_1" in ids(empty_url, "summaries")
        assert not {"sum_0", "sum_2", "sum_12"} & ids(empty_url, "summaries")
        forgotten = ids(empty_url, "sessions WHERE forget_at IS NOT NULL")
        assert forgotten == closed - {"conv_0", "conv_1"}
        due = "SELECT count(*) FROM sessions WHERE forget_at = closed_at + 86400"
        with connected(empty_url) as connection:
            assert connection.scalar(sa.text(due)) == len(forgotten)
        migrate.downgrade(empty_url, "0006")
        assert ids(empty_url, "sessions") == all_sessions


def run(url, *statements):
    with connected(url) as connection:
        for statement in statements:
            connection.execute(sa.text(statement))


def ids(url, rows, column="id"):
    with connected(url) as connection:
        return set(connection.scalars(sa.text(f"SELECT {column} FROM {rows}")))
