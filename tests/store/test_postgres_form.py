"""The other database gets statements that its dialect has; what they do there is tested later."""

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateTable

from sessiond.store.chains import chain_of
from sessiond.store.database import parse_url
from sessiond.store.schema import metadata, turns

DIALECT = postgresql.dialect()


@pytest.mark.parametrize("table", metadata.sorted_tables, ids=lambda table: table.name)
def test_tables_and_indexes_compile(table):
    assert "CREATE TABLE" in str(CreateTable(table).compile(dialect=DIALECT))
    for index in table.indexes:
        made = str(CreateIndex(index).compile(dialect=DIALECT))
        assert made.startswith("CREATE UNIQUE INDEX" if index.unique else "CREATE INDEX")
        assert len(index.name) <= 63  # longer names are cut there


def test_chains_compile_to_one_recursive_query():
    chain = chain_of("ann", "resp_1")
    select = sa.select(turns.c.id).join(chain, chain.c.id == turns.c.id)
    assert str(select.compile(dialect=DIALECT)).startswith("WITH RECURSIVE chain")


def test_its_url_is_taken():
    assert parse_url("postgresql+psycopg://u:p@h/n").database == "n"
