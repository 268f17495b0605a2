"""Statements that a store makes, and how its database would look their rows up."""

import contextlib
import json
import re
import sqlite3

import sqlalchemy as sa

# Few rows however many sessions there are: CTEs and subqueries of few, servers, turns that run.
_SMALL = {"replicas", "chain", "chains", "needed", "line", "seen", "every_row", "CONSTANT"}
_FEW_ENTRIES = {"ix_turns_running", "pk_replicas", "ix_replicas_name"}
_LARGE = {
    "audit_log",
    "idempotency_keys",
    "items",
    "keys",
    "quotas",
    "reservations",
    "sessions",
    "summaries",
    "system_prompts",
    "turns",
    "users",
}


@contextlib.contextmanager
def noted():
    """All statements that are made meanwhile, with the parameters of one execution."""
    found = []

    def note(_connection, _cursor, statement, parameters, _context, executemany):
        found.append((statement, parameters[0] if executemany else parameters))

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        yield found
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


@contextlib.contextmanager
def counted(store, *, every=10):
    """Counts what a new store's SQLite does, in instructions of its virtual machine."""
    steps = [0]

    def count():
        steps[0] += every

    def watch(connection, _record):
        connection.run_async(lambda raw: raw.set_progress_handler(count, every))

    engines = {one.sync_engine for one in store.database.engines}
    for engine in engines:
        sa.event.listen(engine, "connect", watch)
    try:
        yield steps
    finally:
        for engine in engines:
            sa.event.remove(engine, "connect", watch)


def walks(url, statements):
    """What is read from end to end, if need be: a large table, or an index of one."""
    look = _sqlite_walks if url.startswith("sqlite") else _postgres_walks
    return look(url, [one for one in statements if _has_plan(one[0])])


def _has_plan(statement):
    return statement.split()[0] in {"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}


def _sqlite_walks(url, statements):
    with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite+aiosqlite:///"))) as database:
        found = set()
        for statement, parameters in statements:
            plan = [
                row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            ]
            for step in plan:
                scan = re.match(r"SCAN (\S+)(?: USING (?:COVERING )?INDEX (\S+))?", step)
                if scan and scan[1] not in _SMALL and not scan[1].startswith("("):
                    found.add(scan[2] or f"all rows of {scan[1]}")
        return found - _FEW_ENTRIES


def _postgres_walks(url, statements):
    import psycopg

    address = url.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(address, cursor_factory=psycopg.ClientCursor) as connection:
        # A few thousand rows are read through sooner than looked up; more are not. What is asked
        # here is whether there is an index to look them up by.
        for way in ("seqscan", "hashjoin", "mergejoin"):
            connection.execute(f"SET enable_{way} = off")
        found = set()
        for statement, parameters in statements:
            row = connection.execute(f"EXPLAIN (FORMAT JSON) {statement}", parameters).fetchone()
            plans = row[0] if isinstance(row[0], list) else json.loads(row[0])
            for node in _nodes(plans[0]["Plan"]):
                table, index = node.get("Relation Name"), node.get("Index Name")
                if node["Node Type"] == "Seq Scan" and table in _LARGE:
                    found.add(f"all rows of {table}")
                elif index and "Index Cond" not in node:
                    found.add(index)
        return found - _FEW_ENTRIES


def _nodes(plan):
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)
