"""A migrated database per test, of each kind: fixtures that the folders' conftest files import."""

import contextlib
import shutil
from pathlib import Path

import pytest

from sessiond.store import migrate

KINDS = ("sqlite", "postgres")

# Between them and SQL lie the sessions, which are tested on both kinds.
ABOVE_SQL = ("gateway", "cli", "docs", "observability")


def pytest_addoption(parser):
    parser.addoption(
        "--all-databases",
        action="store_true",
        help=f"run tests/{', tests/'.join(ABOVE_SQL)} on Postgres, too",
    )


def pytest_collection_modifyitems(config, items):
    """Tests far above SQL run on SQLite alone unless asked for: each kind takes as long again."""
    if config.getoption("--all-databases"):
        return
    folders = {Path(__file__).parent / name for name in ABOVE_SQL}
    left_out = [
        item
        for item in items
        if getattr(item, "callspec", None)
        and item.callspec.params.get("database_kind") == "postgres"
        and folders & set(item.path.parents)
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def sqlite_url(path):
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture(scope="session")
def postgres():
    """A Postgres server of the whole run."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: nothing is tested on Postgres")
    from tests.store.postgres import PostgresUnavailableError, running_postgres

    try:
        with running_postgres() as server:
            yield server
    except PostgresUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """A SQLite file with the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("db") / "migrated.db"
    migrate.upgrade(sqlite_url(path))
    return path


@pytest.fixture(scope="session")
def migrated_template(postgres):
    """A Postgres database with the newest schema, to be copied."""
    name = postgres.create()
    migrate.upgrade(postgres.url(name))
    return name


@pytest.fixture(scope="session", params=KINDS)
def database_kind(request):
    """Which database the test runs on."""
    return request.param


@pytest.fixture(scope="session")
def lend_database(request, database_kind, tmp_path_factory):
    """Make a database of this kind: `with lend_database() as url`. Migrated, or empty."""

    @contextlib.contextmanager
    def lend(*, migrated=True):
        if database_kind == "sqlite":
            path = tmp_path_factory.mktemp("db") / "sessiond.db"
            if migrated:
                shutil.copy(request.getfixturevalue("migrated_file"), path)
            yield sqlite_url(path)
            return
        server = request.getfixturevalue("postgres")
        name = server.create(request.getfixturevalue("migrated_template") if migrated else None)
        yield server.url(name)
        server.drop(name)

    return lend


@pytest.fixture
def url(lend_database):
    """The URL of a migrated database."""
    with lend_database() as url:
        yield url


@pytest.fixture
def empty_url(lend_database):
    """The URL of a database without tables."""
    with lend_database(migrated=False) as url:
        yield url
