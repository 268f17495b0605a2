"""A Postgres database that the next test gets: nothing of the last one is in it."""

import contextlib

import pytest

from tests.databases import Shelf

psycopg = pytest.importorskip("psycopg")

SCHEMA = """
SELECT relname, attname, atttypid FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
WHERE relnamespace = 'public'::regnamespace ORDER BY relname, attnum
"""
ADD_USER = "INSERT INTO users (id, created_at, salt) VALUES (%s, 1.0, 'x')"


def connected(url):
    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def contents(url):
    """Its schema, and the rows of each table."""
    with connected(url) as connection:
        schema = connection.execute(SCHEMA).fetchall()
        found = connection.execute(
            "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1"
        )
        rows = {
            name: connection.execute(f'SELECT * FROM "{name}"').fetchall()
            for (name,) in found.fetchall()
        }
    return schema, rows


def test_a_cleared_database_is_as_after_the_migrations(postgres):
    shelf = Shelf(postgres)  # one of the run's would be dropped after some uses
    name = shelf.take()
    url = postgres.url(name)
    fresh = contents(postgres.url(shelf._template))  # noqa: SLF001 -- what is copied
    forgotten = psycopg.connect(url.replace("+psycopg", ""))
    forgotten.execute(ADD_USER, ["in a transaction that nobody ends"])
    with contextlib.closing(forgotten):
        with connected(url) as connection:
            connection.execute(ADD_USER, ["ann"])
            connection.execute("SELECT nextval('audit_log_id_seq')")
        assert contents(url) != fresh
        shelf.put_back(name)
        assert shelf.take() == name
        assert contents(url) == fresh
        with connected(url) as connection:
            assert connection.execute("SELECT nextval('audit_log_id_seq')").fetchone() == (1,)
        with pytest.raises(psycopg.OperationalError):
            forgotten.execute("SELECT 1")
    shelf.put_back(name)
