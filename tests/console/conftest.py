"""A browser for all tests of the folder, on one event loop with the servers that it looks at."""

import contextlib
import shutil

import pytest
import pytest_asyncio

from benchmarks.browser import NAMES, find_browser
from sessiond.sessions.limits import ServiceLimits
from tests.api.tenants import Person
from tests.console.console import Console
from tests.databases import sqlite_url
from tests.harness.stack import real_stack

HELD = ServiceLimits(http_hold_s=600, reap_every_s=0.05)
NO_IDLE_WORK = {"idle_prefill": False}  # else a block more may be taken after the API was asked


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser():
    """A Chromium."""
    playwright = pytest.importorskip(
        "playwright.async_api", reason="playwright is not installed: no browser test ran"
    )
    command = find_browser()
    if command is None:
        pytest.skip(f"no Chromium ({', '.join(NAMES)}): the console was not tested in a browser")
    async with playwright.async_playwright() as driver:
        running = await driver.chromium.launch(executable_path=command)
        yield running
        await running.close()


@pytest.fixture
def stack(migrated_file, tmp_path):
    """Open the whole stack over a fake model: `async with stack() as running`."""
    path = tmp_path / "sessiond.db"
    shutil.copy(migrated_file, path)
    defaults = {"service_limits": HELD, "engine_config": NO_IDLE_WORK}
    return lambda **options: real_stack(sqlite_url(path), **defaults | options)


@pytest.fixture
def open_console(browser):
    """Open the console of a stack: `async with open_console(running) as console`."""

    @contextlib.asynccontextmanager
    async def open_it(running, *, key=None, **options):
        context = await browser.new_context(
            **{"viewport": {"width": 1280, "height": 900}, **options}
        )
        context.set_default_timeout(30_000)
        try:
            console = await Console.open(context, running.served.http_url)
            if key is not None:
                await console.use_key(key)
            yield console
            assert console.faults == []
        finally:
            await context.close()

    return open_it


@pytest.fixture
def anyone():
    """Whoever asks a server that asks nobody for a key."""
    return lambda running: Person(running, "local", "", "any")
