"""A Prometheus that scrapes one server, and what it answers."""

import asyncio
import json
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from benchmarks.server_process import free_port

_ALIGNED_S = 0.01  # Prometheus moves the times of scrapes by some milliseconds


@dataclass
class Prometheus:
    """Answers of one scrape that ended well, until there is to be a later one.

    On a busy machine the next may take too long; then all that it tells of is said to be gone.
    """

    http: httpx.AsyncClient
    scraped_at_s: float = 0.0

    async def ask(self, path, **params):
        answer = (await self.http.get(f"/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    async def query(self, expression):
        """Values by labels, without the job's."""
        data = await self.ask("query", query=expression, time=self.scraped_at_s)
        return {
            tuple(sorted(labels_of(sample["metric"]).items())): float(sample["value"][1])
            for sample in data["result"]
        }

    async def value(self, expression):
        values = await self.query(expression)
        assert len(values) == 1, (expression, values)
        return next(iter(values.values()))

    async def scraped_anew(self):
        """Wait until there are samples of a scrape that began after now, and ended well."""
        asked_at = time.time() + _ALIGNED_S
        async with asyncio.timeout(240):
            while (at := await self._good_scrape_s()) <= asked_at:  # noqa: ASYNC110 -- another process
                await asyncio.sleep(0.05)
        self.scraped_at_s = at

    async def _good_scrape_s(self):
        """When the last scrape began, if it ended well."""
        data = await self.ask("query", query="timestamp(up) and up == 1")
        return max((float(one["value"][1]) for one in data["result"]), default=0.0)


def labels_of(metric):
    return {k: v for k, v in metric.items() if k not in ("instance", "job", "__name__")}


@asynccontextmanager
async def scraping(programs, folder, port):
    """Scrape the server on a port of loopback until the block ends."""
    config = {
        "global": {"scrape_interval": "1s"},  # which is how long a scrape may take, too
        "scrape_configs": [
            {"job_name": "sessiond", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    file = folder / "prometheus.json"
    file.write_text(json.dumps(config))  # JSON is YAML
    own = free_port()
    process = await asyncio.create_subprocess_exec(
        programs.prometheus,
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{own}",
        "--log.level=warn",
        cwd=folder,
    )
    try:
        base = f"http://127.0.0.1:{own}"
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as http:
            await _ready(process, http)
            prometheus = Prometheus(http)
            await prometheus.scraped_anew()
            yield prometheus
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _ready(process, http):
    async with asyncio.timeout(60):
        while True:
            assert process.returncode is None, "Prometheus ended"
            try:
                if (await http.get("/-/ready")).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)
