"""A migrated database per test, of each kind: fixtures that the folders' conftest files import."""

import contextlib
import shutil
from collections import Counter
from pathlib import Path

import pytest

from sessiond.store import migrate
from tests.run_folder import run_folder
from tests.soak import SOAK

KINDS = ("sqlite", "postgres")

# How long a database may take in tests that are not about that: others may want the machine.
PATIENCE_S = 240.0

# What rows leave behind adds up, though they are deleted.
MOST_USES = 10

# Above the store, these alone run on both kinds in the first ring: who owns a conversation, what is
# reserved of a quota, what is done once only, and what is erased, hang on SQL.
ON_BOTH = {
    f"sessions/{name}.py"
    for name in (
        "test_commit_two",
        "test_erasing",
        "test_ownership",
        "test_quota_limits",
        "test_quotas",
        "test_idempotency",
        "test_uncertain_commit",
    )
}

# Between them and SQL lie the sessions, which are tested on both kinds.
ABOVE_SQL = ("api", "sockets", "cli", "docs", "observability")
# Whole servers whose clients are the subject; restarts, kills and replicas are tried on both kinds.
ABOVE_SQL_TOO = (
    "e2e/test_chat_command.py",
    "e2e/test_client_examples.py",
    "e2e/test_dialogues.py",
    "e2e/test_reclaim.py",
    "e2e/test_sdk_clients.py",
    "e2e/test_serve.py",
)


def pytest_addoption(parser):
    parser.addoption(
        "--all-databases",
        action="store_true",
        help=f"run tests/{', tests/'.join((*ABOVE_SQL, *ABOVE_SQL_TOO))} on Postgres, too",
    )


def pytest_collection_modifyitems(config, items):
    """Tests above the store run on Postgres in the second ring; those far above when asked for."""
    for item in items:
        if not _is_first(item):
            item.add_marker("second")
    if config.getoption("--all-databases") or SOAK:
        return
    above = {Path(__file__).parent / name for name in (*ABOVE_SQL, *ABOVE_SQL_TOO)}
    left_out = [
        item
        for item in items
        if getattr(item, "callspec", None)
        and item.callspec.params.get("database_kind") == "postgres"
        and above & {item.path, *item.path.parents}
    ]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


def _is_first(item):
    folder = Path(__file__).parent
    if getattr(item, "callspec", None) is None:
        return True
    if item.callspec.params.get("database_kind") != "postgres":
        return True
    file = item.path.relative_to(folder)
    return file.parts[0] == "store" or file.as_posix() in ON_BOTH


def sqlite_url(path):
    return f"sqlite+aiosqlite:///{path}"


@pytest.fixture(scope="session")
def postgres():
    """A Postgres server of the whole run."""
    pytest.importorskip("psycopg", reason="psycopg is not installed: nothing is tested on Postgres")
    from tests.store.postgres import PostgresUnavailableError, shared_postgres

    try:
        return shared_postgres(run_folder())
    except PostgresUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory):
    """A SQLite file with the newest schema, to be copied."""
    path = tmp_path_factory.mktemp("db") / "migrated.db"
    migrate.upgrade(sqlite_url(path))
    return path


class Shelf:
    """Migrated Postgres databases without rows. To make one takes ten times as long as to clear it.

    Whoever changes the schema takes an empty database instead.
    """

    def __init__(self, server):
        self._server = server
        self._template = server.create()
        migrate.upgrade(server.url(self._template))
        self._free = []
        self._uses = Counter()

    def take(self):
        """The name of one, for one user."""
        name = self._free.pop() if self._free else self._server.create(self._template)
        self._uses[name] += 1
        return name

    def put_back(self, name):
        """Its user is done."""
        if self._uses[name] == MOST_USES:
            self._server.drop(name)
        else:
            self._server.clear(name)
            self._free.append(name)


@pytest.fixture(scope="session")
def shelf(postgres):
    """Migrated databases of the run's Postgres."""
    return Shelf(postgres)


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
        if migrated:
            shelf = request.getfixturevalue("shelf")
            name = shelf.take()
            yield server.url(name)
            shelf.put_back(name)
        else:
            name = server.create()
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
