"""R07: forms of a request that HTTP allows or forbids, on the wire (RFC 9112)."""

import asyncio

import pytest

from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving

BODY = b'{"model": "scripted-model", "input": "hi"}'
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


async def answers(port, data):
    """Everything that the server says until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.transport.abort()


def post(*headers, body, target=b"/v1/responses"):
    head = b"POST " + target + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


@pytest.fixture
async def port():
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        yield served.port


@pytest.mark.parametrize("length", [0, 5, len(CHUNKED), 10_000])
async def test_a_length_beside_chunks_counts_for_nothing_and_the_connection_is_closed(port, length):
    request = post(b"Content-Length: %d" % length, b"Transfer-Encoding: chunked", body=CHUNKED)
    smuggled = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = await answers(port, request + smuggled)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in head.lower()
    assert b"HTTP/1.1" not in rest, "what follows is not answered"


async def test_chunks_alone_keep_the_connection(port):
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = await answers(port, post(b"Transfer-Encoding: chunked", body=CHUNKED) + last)
    assert answer.count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    ("target", "status"),
    [
        (b"http://localhost/openapi.json", b"200"),
        (b"HTTP://127.0.0.1:8080/openapi.json?x=1", b"200"),
        (b"http://localhost", b"307"),
        (b"http://localhost?x=/openapi.json", b"307"),
        (b"http://evil.example/openapi.json", b"403"),
        (b"http://localhost@evil.example/openapi.json", b"403"),
        (b"http:///openapi.json", b"403"),
        (b"ftp://localhost/openapi.json", b"404"),
        (b"/http://localhost/openapi.json", b"404"),
    ],
)
async def test_an_absolute_url_is_its_host_and_its_path(port, target, status):
    request = b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert (await answers(port, request)).startswith(b"HTTP/1.1 " + status)


async def test_the_host_of_an_absolute_url_counts_and_not_the_header(port):
    request = b"GET http://localhost/openapi.json HTTP/1.1\r\nHost: evil.example\r\n"
    answer = await answers(port, request + b"Connection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200")
