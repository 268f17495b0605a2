"""Requests that are nearly right, given to a served stack: it answers, and goes on.

Every frame gets an event or none, never a closed socket, and a right turn behind it works. Every
body gets an answer of the contract's. Nothing is left behind in the pool.
"""

import httpx
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from sessiond.errors import STATUS
from tests.api.tenants import Line
from tests.fuzz.structured import STRUCTURED, as_bytes
from tests.soak import SOAK

COUNT = 3000 if SOAK else 180
SEED = 20260701
PROBE_EVERY = 12
PATHS = ("/v1/responses", "/v1/chat/completions", "/v1/conversations", "/v1/conversations/c/items")
PROBE = "probe"


def drawn(strategy, count):
    """As many values of a strategy, the same for the same seed."""
    found = []

    @seed(SEED)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(value):
        found.append(value)

    draw()
    return found


def sendable(text):
    try:
        return as_bytes(text).decode()
    except UnicodeDecodeError:  # a frame of text has to be UTF-8; what is not closes 1007
        return None


async def until_probe(line, number):
    """Ask for a right turn; all events until it has ended, which must be well."""
    name = f"{PROBE}{number}"
    await line.create("probe", stream_id=name, max_output_tokens=2)
    events = []
    while True:
        event = await line.hear()
        events.append(event)
        ends = ("response.completed", "response.incomplete", "response.failed", "error")
        if event.get("stream_id") == name and event["type"] in ends:
            assert event["type"] in ends[:2], event
            return events


async def test_a_socket_survives_every_frame_and_the_next_turn_works(stack):
    frames = [text for text in drawn(STRUCTURED["frame"], COUNT) if sendable(text) is not None]
    async with stack() as running:
        errors = 0
        async with running.served.connect() as ws:
            line = Line(ws)
            for number in range(0, len(frames), PROBE_EVERY):
                for text in frames[number : number + PROBE_EVERY]:
                    await ws.send(sendable(text))
                for event in await until_probe(line, number):
                    if event["type"] == "error":
                        errors += 1
                        inner = event["error"]
                        assert event["status"] == STATUS[inner["code"]]
                        assert inner["code"] != "internal_error", event
                        assert inner["message"]
        assert errors > len(frames) // 4
        await running.idle()


async def test_every_body_is_answered_and_the_next_turn_works(stack):
    named = st.sampled_from(sorted(STRUCTURED)).flatmap(STRUCTURED.get)
    bodies = drawn(st.tuples(st.sampled_from(PATHS), named), COUNT)
    async with (
        stack() as running,
        httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=60) as http,
    ):
        for number, (path, text) in enumerate(bodies):
            answer = await http.post(path, content=as_bytes(text))
            if answer.status_code >= 400:
                error = answer.json()["error"]
                assert answer.status_code == STATUS[error["code"]]
                assert answer.status_code < 500, (path, text, error)
            if number % PROBE_EVERY == 0:
                right = {"model": "fake", "input": "probe", "max_output_tokens": 2, "store": False}
                answer = await http.post("/v1/responses", json=right)
                assert answer.status_code == 200, answer.text
        await running.served.service.drain()
        await running.idle()
