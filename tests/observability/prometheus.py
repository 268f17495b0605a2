"""A Prometheus that scrapes one server, and what it answers."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from benchmarks.server_process import free_port

SCRAPE_S = 0.2


@dataclass
class Prometheus:
    http: httpx.AsyncClient

    async def ask(self, path, **params):
        answer = (await self.http.get(f"/api/v1/{path}", params=params)).json()
        assert answer["status"] == "success", (params, answer)
        return answer["data"]

    async def query(self, expression):
        """Values by labels, without the job's."""
        data = await self.ask("query", query=expression)
        return {
            tuple(sorted(labels_of(sample["metric"]).items())): float(sample["value"][1])
            for sample in data["result"]
        }

    async def value(self, expression):
        values = await self.query(expression)
        assert len(values) == 1, (expression, values)
        return next(iter(values.values()))

    async def until(self, expression, holds):
        """Wait until the only value of an expression is as it should be; returns it."""
        async with asyncio.timeout(60):
            while True:
                values = await self.query(expression)
                if len(values) == 1 and holds(value := next(iter(values.values()))):
                    return value
                await asyncio.sleep(SCRAPE_S)

    async def scraped_anew(self):
        """Wait until a scrape has begun and ended after now."""
        since = (await self._last_scrape()).get("lastScrape")
        seen = 0
        async with asyncio.timeout(60):
            while seen < 2:
                await asyncio.sleep(SCRAPE_S / 4)
                target = await self._last_scrape()
                if target["lastScrape"] != since:
                    since, seen = target["lastScrape"], seen + 1
        assert target["health"] == "up", target["lastError"]

    async def _last_scrape(self):
        return (await self.ask("targets"))["activeTargets"][0]


def labels_of(metric):
    return {k: v for k, v in metric.items() if k not in ("instance", "job", "__name__")}


@asynccontextmanager
async def scraping(programs, folder, port, *, rules=()):
    """Scrape the server on a port of loopback until the block ends."""
    config = {
        "global": {"scrape_interval": "200ms", "evaluation_interval": "1s"},
        "rule_files": [str(rule) for rule in rules],
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
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=30) as http:
            await _ready(process, http)
            prometheus = Prometheus(http)
            async with asyncio.timeout(60):
                while not (await prometheus.ask("targets"))["activeTargets"]:  # noqa: ASYNC110 -- another process
                    await asyncio.sleep(0.02)
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
