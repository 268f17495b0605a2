"""Migrations go up, down and up, and make what the schema says."""

import asyncio
import sqlite3
import subprocess
import sys

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from sessiond.store import migrate
from sessiond.store.errors import StoreConfigError
from sessiond.store.records import SessionHints
from sessiond.store.schema import metadata
from sessiond.store.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "new folder" / "sessiond.db"


def url_of(path):
    return f"sqlite+aiosqlite:///{path}"


def tables_of(path):
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        names = set(sa.inspect(connection).get_table_names())
    engine.dispose()
    return names


def salts_of(path):
    connection = sqlite3.connect(path)
    salts = [salt for (salt,) in connection.execute("SELECT salt FROM users")]
    connection.close()
    return salts


def test_up_down_and_up_again(path):
    migrate.upgrade(url_of(path))
    assert tables_of(path) == {*metadata.tables, "alembic_version"}
    migrate.downgrade(url_of(path), "base")
    assert tables_of(path) == {"alembic_version"}
    migrate.upgrade(url_of(path))
    assert tables_of(path) == {*metadata.tables, "alembic_version"}
    migrate.upgrade(url_of(path))  # nothing to do


def test_migrations_make_exactly_the_schema(path):
    migrate.upgrade(url_of(path))
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )
        differences = compare_metadata(context, metadata)
        checks = {
            table: {check["name"] for check in sa.inspect(connection).get_check_constraints(table)}
            for table in metadata.tables
        }
    engine.dispose()
    assert differences == []
    assert checks["turns"] == {"ck_turns_status"}


def test_check_tells_an_empty_database_from_a_current_one(path):
    path.parent.mkdir()
    before = asyncio.run(migrate.check(url_of(path)))
    assert before.current is None
    assert not before.is_current
    migrate.upgrade(url_of(path))
    assert asyncio.run(migrate.check(url_of(path))).is_current


def test_of_several_servers_that_start_at_once_one_migrates(path):
    path.parent.mkdir()
    code = "import sys; from sessiond.store.migrate import upgrade; upgrade(sys.argv[1])"
    servers = [
        subprocess.Popen([sys.executable, "-c", code, url_of(path)], stderr=subprocess.PIPE)
        for _ in range(3)
    ]
    errors = [server.communicate()[1].decode() for server in servers]
    assert [server.returncode for server in servers] == [0, 0, 0], errors
    assert asyncio.run(migrate.check(url_of(path))).is_current


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
    with pytest.raises(StoreConfigError, match=r"allowed is sqlite\+aiosqlite:///FILE"):
        migrate.upgrade(url)


def test_rows_of_the_first_version_survive_the_way_up_and_down(path):
    """A context of then is seen whole now, and can be used by either version."""
    migrate.upgrade(url_of(path), "0001")
    connection = sqlite3.connect(path)
    connection.executescript(
        """
        INSERT INTO users VALUES ('ann', 1.0), ('bob', 1.0);
        INSERT INTO system_prompts VALUES ('sys_1', 'ann', NULL, NULL, x'0100000002000000', 2);
        INSERT INTO sessions VALUES ('conv_1', 'ann', 'm', 9, 'sys_1', 'resp_1', 5, 'release',
            'normal', 'exact', '{}', 1.0, 1.0, NULL);
        INSERT INTO turns (id, user_id, session_id, system_prompt_id, message_id, model, status,
            generate, awaits_reply, request, seed, start_tokens, input_tokens, context_tokens,
            input_ids, reply_ids, new_tokens, output_tokens, created_at)
        VALUES ('resp_1', 'ann', 'conv_1', 'sys_1', 'msg_1', 'm', 'completed', 1, 0, '{}', 7, 2, 2,
            5, x'0300000004000000', x'05000000', 2, 1, 1.0);
        """
    )
    connection.commit()
    connection.close()

    async def read():
        store = Store(url_of(path))
        ids = await store.context_ids("ann", "sys_1", "resp_1")
        shape = await store.shape("ann", 2, "resp_1")
        record = await store.find_session("ann", "conv_1")
        await store.close()
        return ids, shape, record

    migrate.upgrade(url_of(path))
    ids, shape, record = asyncio.run(read())
    assert ids == [1, 2, 3, 4, 5]
    assert (shape.tokens, shape.context, shape.fidelity) == (5, "full", "exact")
    assert (record.hints, record.context_policy) == (SessionHints(), None)
    assert len(set(salts_of(path)) - {None}) == 2  # users of then get salts, each its own
    migrate.downgrade(url_of(path), "0001")
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT id, context_tokens FROM turns").fetchall() == [("resp_1", 5)]
    connection.close()
    migrate.upgrade(url_of(path))
    assert asyncio.run(read())[0] == ids
