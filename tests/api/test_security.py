"""Host and Origin: which requests get in, on HTTP and on sockets."""

import json

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sessiond.api.security import (
    HostOriginCheck,
    HostPort,
    is_same_origin,
    parse_host,
    plain_origin,
)
from sessiond.errors import RequestError
from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving


def checked(*headers, allowed=()):
    check = HostOriginCheck(None, allowed_hosts=allowed)
    try:
        check.check([(name, value.encode("latin-1")) for name, value in headers])
    except RequestError as error:
        return (error.status, error.param)
    return None


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:8080",
        "localhost.",
        "127.0.0.1",
        "127.0.0.1:1",
        "[::1]",
        "[::1]:8080",
        "chat.example:443",
        "CHAT.example",
    ],
)
def test_loopback_and_configured_hosts_get_in(host):
    assert checked((b"host", host), allowed=["Chat.Example"]) is None


@pytest.mark.parametrize(
    "host",
    [
        "",
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "localhost@evil.example",
        "evil.example/localhost",
        "localhost, evil.example",
        "local host",
        "[::1",
        "localhost:99999",
        "localhost:x",
        "localhost#x",
        "\xe9.example",
    ],
)
def test_other_hosts_stay_out(host):
    assert checked((b"host", host), allowed=["chat.example"]) == (403, "Host")


def test_a_missing_or_doubled_host_stays_out():
    assert checked() == (403, "Host")
    assert checked((b"host", "localhost"), (b"host", "localhost")) == (403, "Host")


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8080", "localhost:8080", True),
        ("http://LOCALHOST:8080", "localhost:8080", True),
        ("http://localhost", "localhost", True),
        ("http://localhost:80", "localhost", True),
        ("https://chat.example", "chat.example", True),
        ("https://chat.example", "chat.example:443", True),
        ("http://[::1]:8080", "[::1]:8080", True),
        ("http://localhost:8080", "localhost:8081", False),
        ("http://localhost", "localhost:8080", False),
        ("http://127.0.0.1:8080", "localhost:8080", False),
        ("http://evil.example", "localhost:8080", False),
        ("null", "localhost", False),
        ("", "localhost", False),
        ("file://", "localhost", False),
        ("ftp://localhost", "localhost", False),
        ("http://localhost/path", "localhost", False),
        ("http://user@localhost", "localhost", False),
        ("http://localhost:x", "localhost", False),
        ("http://[::1", "localhost", False),
        ("chrome-extension://abc", "localhost", False),
    ],
)
def test_only_the_same_origin_gets_in(origin, host, same):
    assert is_same_origin(origin, parse_host(host)) is same
    assert checked((b"host", host), (b"origin", origin), allowed=["chat.example"]) == (
        None if same else (403, "Origin")
    )


@pytest.mark.parametrize(
    ("origin", "lets_in"),
    [
        ("https://app.example", True),
        ("https://APP.example:443", True),
        ("http://app.example", False),
        ("https://app.example:8443", False),
        ("https://app.example.evil.example", False),
        ("https://evil.example", False),
        ("http://localhost:3000", True),
        ("http://localhost", True),  # the server's own
        ("null", False),
    ],
)
def test_allowed_origins_get_in_beside_the_servers_own(origin, lets_in):
    allowed = [plain_origin("https://App.example:443"), plain_origin("http://localhost:3000")]
    check = HostOriginCheck(None, allowed_hosts=(), allowed_origins=allowed)
    headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
    if lets_in:
        check.check(headers)
    else:
        with pytest.raises(RequestError, match="--allowed-origins"):
            check.check(headers)


async def test_scripts_of_an_allowed_origin_may_read_answers_and_others_get_nothing():
    page = "https://app.example"
    gateway = gateway_of(ScriptedService(lambda _: reply("x")))
    async with (
        serving(gateway, allowed_origins=[page]) as served,
        httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60) as http,
    ):
        asks = {
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-stainless-lang",
        }
        preflight = await http.options("/v1/responses", headers={"Origin": page, **asks})
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == page
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        answer = await http.get("/v1/models", headers={"Origin": page})
        assert answer.headers["access-control-allow-origin"] == page
        assert "access-control-allow-credentials" not in answer.headers
        evil = {"Origin": "https://evil.example"}
        for refused in (
            await http.options("/v1/responses", headers={**evil, **asks}),
            await http.get("/v1/models", headers=evil),
        ):
            assert refused.status_code == 403
            assert "access-control-allow-origin" not in refused.headers
        async with served.connect(origin=page):
            pass


def test_a_second_origin_is_checked_too():
    headers = [(b"origin", "http://localhost"), (b"origin", "http://evil.example")]
    assert checked((b"host", "localhost"), *headers) == (403, "Origin")


def test_a_host_header_is_taken_apart():
    assert parse_host("[::1]:8080") == HostPort("::1", 8080)
    assert parse_host("Example.") == HostPort("example", None)
    assert parse_host(":80") is None


@pytest.mark.parametrize(
    ("headers", "param"),
    [({"Host": "evil.example"}, "Host"), ({"Origin": "http://evil.example"}, "Origin")],
)
async def test_the_check_holds_on_http_and_on_sockets(headers, param):
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        async with httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60) as http:
            for path in ("/openapi.json", "/v1/responses", "/console", "/nowhere"):
                response = await http.get(path, headers=headers)
                assert response.status_code == 403
                assert response.json()["error"]["code"] == "permission_denied"
                assert response.json()["error"]["param"] == param
        url = f"ws://{headers.get('Host', 'localhost')}/v1/responses"
        place = {"host": "127.0.0.1", "port": served.port, "proxy": None}
        with pytest.raises(InvalidStatus) as refused:
            await connect(url, origin=headers.get("Origin"), **place)
        assert refused.value.response.status_code == 403
        assert json.loads(refused.value.response.body)["error"]["param"] == param
        async with served.connect(origin=served.http_url):
            pass
