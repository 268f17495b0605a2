import pytest


@pytest.fixture
def stack(url):
    """Open the whole stack, on each kind of database: `async with stack() as running`."""
    from tests.harness.stack import real_stack

    return lambda **options: real_stack(url, **options)
