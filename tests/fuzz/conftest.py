import pytest

from sessiond.store.migrate import upgrade
from tests.harness.stack import real_stack


@pytest.fixture
def stack(tmp_path):
    """Open the whole stack on a SQLite file: `async with stack() as running`."""
    url = f"sqlite+aiosqlite:///{tmp_path}/db"
    upgrade(url)
    return lambda **options: real_stack(url, **options)
