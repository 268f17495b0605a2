import pytest
from hypothesis import settings

from sessiond.store.migrate import upgrade

# a deadline measures the machine, not the code
settings.register_profile("gateway", deadline=None)
settings.load_profile("gateway")


@pytest.fixture(scope="session")
def migrated_db(tmp_path_factory):
    """An empty database of the newest schema, to be copied: migrating takes a while."""
    path = tmp_path_factory.mktemp("db") / "empty.db"
    upgrade(f"sqlite+aiosqlite:///{path}")
    return path


@pytest.fixture
def stack(tmp_path, migrated_db):
    """Open the whole stack: `async with stack() as running`."""
    from tests.gateway.real_stack import real_stack

    return lambda **options: real_stack(tmp_path, migrated_db, **options)
