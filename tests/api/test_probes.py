"""Probes of orchestrators, scrapers and balancers: by IP, by service name, without a Host."""

import asyncio

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.api.scripted import ScriptedEngine, ScriptedService, reply
from tests.harness.serving import gateway_of, serving

PROBED = ("/health", "/health/live", "/health/ready", "/health/capacity", "/metrics")
CLOSED = ("/", "/v1/models", "/v1/responses", "/openapi.json", "/console", "/admin/memory",
          "/healthy", "/metrics/", "/nowhere", "/v1/health/live")  # fmt: skip


def gateway(engine=None):
    return gateway_of(ScriptedService(lambda _: reply("x")), engine)


async def raw(served, text):
    """Status and body of the answer to bytes as they are."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(text.encode("latin-1"))
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), body


def client(served, **headers):
    return httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60, headers=headers)


@pytest.mark.parametrize(
    "host", ["10.244.1.7:8080", "sessiond.chat.svc.cluster.local", "[fd00::7]"]
)
async def test_n01_probes_by_pod_ip_and_service_name_get_in_and_nothing_else_does(host):
    async with serving(gateway()) as served, client(served, Host=host) as http:
        for path in PROBED:
            assert (await http.get(path)).status_code == 200, path
            assert (await http.head(path)).status_code == 200, path
        for path in CLOSED:
            answer = await http.get(path)
            assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Host"), path
        for method in ("POST", "PUT", "DELETE"):
            assert (await http.request(method, "/v1/responses")).status_code == 403
        place = {"host": "127.0.0.1", "port": served.port, "proxy": None}
        for path in ("/v1/responses", "/health/live", "/metrics"):
            with pytest.raises(InvalidStatus) as refused:
                await connect(f"ws://{host}{path}", **place)
            assert refused.value.response.status_code == 403, path


@pytest.mark.parametrize("method", ["OPTIONS", "HEAD", "GET"])
@pytest.mark.parametrize("path", ["/health/ready", "/health/live", "/metrics"])
async def test_n01_checks_of_balancers_without_a_host_get_in(method, path):
    async with serving(gateway()) as served:
        assert (await raw(served, f"{method} {path} HTTP/1.0\r\n\r\n"))[0] == 200
        assert (await raw(served, f"{method} {path} HTTP/1.0\r\nHost:\r\n\r\n"))[0] == 200


async def test_n01_haproxys_default_check_gets_in_and_shows_nothing():
    async with serving(gateway()) as served:
        assert await raw(served, "OPTIONS / HTTP/1.0\r\n\r\n") == (200, b'{"status":"ok"}')
        assert (await raw(served, "OPTIONS / HTTP/1.0\r\nHost: evil.example\r\n\r\n"))[0] == 403
        assert (await raw(served, "OPTIONS /v1/models HTTP/1.0\r\n\r\n"))[0] == 403
        assert (await raw(served, "GET / HTTP/1.0\r\n\r\n"))[0] == 403


async def test_n01_a_check_by_options_sees_that_no_turn_would_be_accepted():
    engine = ScriptedEngine()
    engine.available = False
    async with serving(gateway(engine)) as served:
        assert (await raw(served, "OPTIONS /health/ready HTTP/1.0\r\n\r\n"))[0] == 503
        assert (await raw(served, "OPTIONS /health/live HTTP/1.0\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("path", PROBED)
async def test_n01_the_origin_check_holds_on_probed_paths(path):
    """Also for the origin that a rebound name would have."""
    async with serving(gateway()) as served:
        for host in ("evil.example", "localhost"):
            page = {"Host": host, "Origin": "http://evil.example"}
            async with client(served, **page) as http:
                answer = await http.get(path)
                assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Origin")
        async with client(served, Host="localhost", Origin="http://localhost") as http:
            assert (await http.get(path)).status_code == 200


async def test_n01_an_absolute_url_is_checked_as_a_host_header_is():
    async with serving(gateway()) as served:
        for path, status in (("/health/live", 200), ("/v1/models", 403)):
            target = f"http://10.0.0.7:8080{path}"
            request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            assert (await raw(served, request))[0] == status
