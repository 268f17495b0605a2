"""docs/observability.md: its commands run, its questions are answered, its alerts are there."""

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from benchmarks.server_process import free_port
from tests.docs.blocks import ROOT, code_blocks, table_column

pytestmark = pytest.mark.second

PAGE = "docs/observability.md"
SERVER = "http://127.0.0.1:8080"
CURL, SERVE, PROMTOOL, WRITE = code_blocks(PAGE, "bash")
QUESTIONS = code_blocks(PAGE, "promql")


def test_every_alert_is_listed():
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())["groups"][0]
    listed = table_column(PAGE, "## Prometheus")
    assert listed == [rule["alert"] for rule in rules["rules"]]


@pytest.mark.asyncio(loop_scope="session")
async def test_prometheus_answers_every_question(watched):
    assert len(QUESTIONS) > 5
    for question in QUESTIONS:
        assert await watched.prom.query(question), question


async def test_a_look_at_a_server(stack):
    async with stack() as running:
        for line in CURL.replace(SERVER, running.served.http_url).splitlines():
            output = await shell(line)
            assert ("sessiond_kv_blocks{" if "metrics" in line else '"object":"list"') in output


def test_promtool_is_content(programs):
    path = f"{Path(programs.promtool).parent}:{os.environ['PATH']}"
    for line in PROMTOOL.splitlines():
        done = subprocess.run(
            ["bash", "-c", line],
            check=False,
            cwd=ROOT,
            env=os.environ | {"PATH": path},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "SUCCESS" in done.stdout


async def test_prometheus_starts_with_the_configuration(programs, tmp_path):
    own = f"--web.listen-address=127.0.0.1:{free_port()}"
    words = SERVE.replace("prometheus-data", str(tmp_path)).split()
    process = await asyncio.create_subprocess_exec(
        programs.prometheus, *words[1:], own, cwd=ROOT, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            while line := await process.stderr.readline():
                if b"ready to receive web requests" in line:
                    return
        raise AssertionError("Prometheus ended")
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


async def test_the_dashboard_is_written_as_said():
    file = ROOT / "deploy" / "grafana" / "sessiond.json"
    before = file.read_bytes()
    await shell(re.sub(r"^python", sys.executable, WRITE.strip()))
    assert file.read_bytes() == before


async def shell(line):
    process = await asyncio.create_subprocess_exec(
        "bash", "-o", "pipefail", "-c", line, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, line
    return output.decode()
