import asyncio
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families

from sessiond.store import migrate
from tests.databases import sqlite_url
from tests.harness.stack import Stack, real_stack
from tests.observability.programs import NotToBeHadError, find_programs
from tests.observability.prometheus import Prometheus, scraping
from tests.observability.scenario import busy_server


@dataclass
class Watched:
    """A server that has seen everything, what it answered, and the Prometheus that scrapes it."""

    running: Stack
    responses: list[dict]
    prom: Prometheus


@pytest.fixture(scope="session")
def programs():
    """Prometheus and promtool; where they can't be had the test is skipped, and says why."""
    try:
        return find_programs()
    except NotToBeHadError as error:
        pytest.skip(f"no Prometheus: {error}")


@pytest.fixture
def stack(url):
    """Open a server on a fake model: `async with stack() as running`."""
    return lambda **options: real_stack(url, **options)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _watched(programs, tmp_path_factory):
    """One for all tests that only ask: a Prometheus takes seconds to find its target."""
    folder = tmp_path_factory.mktemp("watched")
    url = sqlite_url(folder / "sessiond.db")
    await asyncio.to_thread(migrate.upgrade, url)
    async with (
        busy_server(url, folder / "tiers") as (running, responses),
        scraping(programs, folder, running.served.port) as prom,
    ):
        yield Watched(running, responses, prom)


@pytest_asyncio.fixture(loop_scope="session")
async def watched(_watched):
    """Scraped just now, twice: `rate()` needs two samples.

    Between such tests the server's loop stands still, and answers nobody.
    """
    await _watched.prom.scraped_anew()
    await _watched.prom.scraped_anew()
    return _watched


@pytest.fixture
async def samples(stack):
    """What a server tells that nobody has talked to."""
    async with stack() as running:
        return await samples_of(running)


@pytest.fixture
async def live(samples):
    """Of each series' name its labels, as the server tells them."""
    return labels_by_name(samples)


@pytest.fixture
async def watched_samples(url, tmp_path):
    """What a server tells that has seen everything."""
    async with busy_server(url, tmp_path / "tiers") as (running, _):
        return await samples_of(running)


async def samples_of(running):
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        text = (await http.get(f"{running.served.http_url}/metrics")).text
    return [sample for one in text_string_to_metric_families(text) for sample in one.samples]


def labels_by_name(samples):
    found = {}
    for sample in samples:
        found.setdefault(sample.name, set()).update(sample.labels)
    return found
