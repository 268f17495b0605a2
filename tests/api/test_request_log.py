"""Request ids, the line of a refused request, the access log."""

import asyncio
import logging
import re

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from sessiond.api.request_log import LINES_AT_ONCE, LineBudget, RequestIds
from tests.api.frames import create, hear
from tests.api.scripted import ScriptedEngine, ScriptedService, reply
from tests.api.tenants import Person
from tests.harness.serving import gateway_of, serving

MADE = re.compile(r"req_[0-9a-f]{32}")
UPGRADE = (
    "GET /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n"
)
CANARY = "canary-of-a-client"


def gateway(engine=None):
    return gateway_of(ScriptedService(lambda _: reply("x")), engine)


def client(served, **headers):
    return httpx.AsyncClient(base_url=served.http_url, trust_env=False, timeout=60, headers=headers)


@pytest.fixture
def lines(caplog):
    """Log lines of a logger, as the server writes them."""
    caplog.handler.addFilter(RequestIds())
    caplog.set_level(logging.INFO, "sessiond")
    return lambda name: [
        f"{record.getMessage()}{record.request}" for record in caplog.records if record.name == name
    ]


async def test_n04_every_answer_has_a_request_id():
    engine = ScriptedEngine()
    engine.available = False
    requests = [
        ("GET", "/health/live", 200),
        ("GET", "/health/ready", 503),
        ("GET", "/v1/models", 200),
        ("GET", "/console", 200),
        ("GET", "/nowhere", 404),
        ("PUT", "/v1/models", 405),
        ("POST", "/v1/responses", 400),
        ("OPTIONS", "/v1/responses", 405),
    ]
    async with serving(gateway(engine)) as served, client(served) as http:
        seen = set()
        for method, path, status in requests:
            answer = await http.request(method, path)
            assert answer.status_code == status, path
            (made,) = answer.headers.get_list("x-request-id")
            assert MADE.fullmatch(made)
            seen.add(made)
        assert len(seen) == len(requests)
        foreign = await http.get("/v1/models", headers={"Host": "evil.example"})
        assert (foreign.status_code, len(foreign.headers.get_list("x-request-id"))) == (403, 1)


@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd", "Root:1-6.a_b", "x" * 128])
async def test_n04_a_valid_id_of_the_client_is_taken_over(given):
    async with serving(gateway()) as served, client(served) as http:
        answer = await http.get("/v1/models", headers={"X-Request-ID": given})
        assert answer.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'a"b', "a,b", "<script>", "a=b", "é"])
async def test_n04_an_invalid_id_of_the_client_is_replaced(given):
    async with serving(gateway()) as served, client(served) as http:
        answer = await http.get("/v1/models", headers={"X-Request-ID": given.encode()})
        assert MADE.fullmatch(answer.headers["x-request-id"])
        twice = [("x-request-id", "a"), ("x-request-id", "b")]
        assert MADE.fullmatch((await http.get("/v1/models", headers=twice)).headers["x-request-id"])


async def test_n04_sockets_and_refused_upgrades_have_an_id():
    async with serving(gateway()) as served:
        async with served.connect(additional_headers={"X-Request-Id": "mine"}) as ws:
            assert ws.response.headers.get_all("x-request-id") == ["mine"]
        async with served.connect() as ws:
            assert MADE.fullmatch(ws.response.headers["x-request-id"])
        with pytest.raises(InvalidStatus) as refused:
            await served.connect(subprotocols=["nope"])
        assert len(refused.value.response.headers.get_all("x-request-id")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "nonsense\r\n\r\n",
        "GET /v1/models HTTP/1.1\r\n\r\n",
        UPGRADE,
    ],
)
async def test_n04_an_answer_to_what_is_not_http_has_an_id(text):
    async with serving(gateway()) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(text.encode())
        head = (await reader.read()).partition(b"\r\n\r\n")[0].decode().lower()
        writer.close()
    assert head.startswith("http/1.1 400")
    assert len(re.findall(r"\r\nx-request-id: req_[0-9a-f]{32}", head)) == 1


async def test_n04_an_internal_error_has_an_id_that_its_traceback_has_too(lines, caplog):
    parts = gateway()

    async def broken(*_, **__):
        raise ZeroDivisionError

    parts.sessions.bind = broken
    async with serving(parts) as served, client(served) as http:
        body = {"model": "fake", "input": "a"}
        answer = await http.post("/v1/responses", json=body, headers={"x-request-id": "r-1"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r-1")
    (line,) = lines("sessiond.refused")
    assert "status=500 user=local client=127.0.0.1 code=internal_error" in line
    traceback = next(record for record in caplog.records if record.exc_info)
    assert (traceback.request, line[-15:]) == (" request_id=r-1", " request_id=r-1")


async def test_n04_one_line_per_refused_request_without_content_or_key(stack, lines, caplog):
    async with stack(keys=True) as running:
        ann = await Person.join(running, "ann")
        wrong = ann.key[:-4] + "zzzz"
        async with client(running.served, **{"x-request-id": "r-7"}) as http:
            path = f"/v1/responses/{CANARY}?a={CANARY}"
            await http.get(path, headers={"Authorization": f"Bearer {wrong}"})
            mine = {"Authorization": f"Bearer {ann.key}"}
            await http.get(path, headers=mine)
            await http.get(f"/{CANARY}", headers=mine)
            await http.get("/admin/users", headers=mine)
            await http.post("/v1/responses", headers=mine, json={"input": CANARY, CANARY: 1})
            await http.post("/v1/responses", headers=mine, json={"input": "a", "top_p": CANARY})
            await http.get("/v1/models", headers={"Host": f"{CANARY}.example"})
            await http.get("/v1/models", headers=mine)
    lost, param = "previous_response_not_found", "previous_response_id"
    who = r"user=\S+ key=[0-9a-f]{16} client=127\.0\.0\.1"
    expected = [
        r"GET route=/v1/responses/{response_id} status=401 client=\S+ code=invalid_api_key",
        rf"GET route=/v1/responses/{{response_id}} status=404 {who} code={lost} param={param}",
        rf"GET route=unknown status=404 {who} code=not_routed",
        rf"GET route=/admin/users status=403 {who} code=permission_denied",
        rf"POST route=/v1/responses status=400 {who} code=unsupported_parameter",
        rf"POST route=/v1/responses status=400 {who} code=invalid_value param=top_p",
        r"GET route=/v1/models status=403 client=\S+ code=permission_denied param=Host",
    ]
    found = lines("sessiond.refused")
    assert len(found) == len(expected), found
    for line, form in zip(found, expected, strict=True):
        assert re.fullmatch(rf"request refused method={form} request_id=r-7", line), line
    assert CANARY not in caplog.text
    assert ann.key.partition(".")[2][:20] not in caplog.text


async def test_n04_a_refused_frame_of_a_socket_is_one_line_with_the_sockets_id(lines):
    mine = {"X-Request-Id": "s-1"}
    async with serving(gateway()) as served, served.connect(additional_headers=mine) as ws:
        await create(ws, input="a", temperature=7)
        assert (await hear(ws))["type"] == "error"
    (line,) = lines("sessiond.refused")
    assert re.fullmatch(
        r"request refused method=SOCKET route=/v1/responses status=400 user=local "
        r"client=127\.0\.0\.1 code=invalid_value param=temperature request_id=s-1",
        line,
    )


async def test_n04_a_flood_of_refused_requests_writes_few_lines(lines):
    async with serving(gateway()) as served, client(served) as http:
        for _ in range(3 * LINES_AT_ONCE):
            assert (await http.get("/v1/models", headers={"Host": "a.example"})).status_code == 403
        await http.get("/nowhere")
    found = lines("sessiond.refused")
    assert LINES_AT_ONCE <= len(found) < 2 * LINES_AT_ONCE
    assert "not_routed" in found[-1]  # a flood of one kind does not hide others


def test_n04_lines_that_were_omitted_are_counted_in_the_next():
    now_s = 0.0
    budget = LineBudget(2, lambda: now_s)
    assert [budget.take("a") for _ in range(5)] == [0, 0, None, None, None]
    assert budget.take("b") == 0
    now_s += 1
    assert [budget.take("a") for _ in range(2)] == [3, None]
    now_s += 1000
    assert [budget.take("a") for _ in range(3)] == [1, 0, None]


async def test_n04_the_access_log_is_off_unless_asked_for(lines):
    async with serving(gateway()) as served, client(served) as http:
        await http.get("/v1/models")
    assert lines("sessiond.access") == []


async def test_n04_the_access_log_has_a_line_per_answer_without_content(lines, caplog):
    async with serving(gateway(), access_log=True) as served:
        async with client(served) as http:
            await http.get(f"/v1/models?{CANARY}", headers={"x-request-id": "r-1"})
            await http.get(f"/{CANARY}", headers={"x-request-id": "r-2"})
        async with served.connect(additional_headers={"X-Request-Id": "s-1"}):
            pass
    http_line, lost, socket = lines("sessiond.access")
    assert re.fullmatch(
        r"request method=GET route=/v1/models status=200 user=local client=127\.0\.0\.1 "
        r"bytes=[1-9]\d* ms=\d+ request_id=r-1",
        http_line,
    )
    assert "route=unknown status=404" in lost
    assert "method=SOCKET route=/v1/responses status=101" in socket
    assert CANARY not in caplog.text
