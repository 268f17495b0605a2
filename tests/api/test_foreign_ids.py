"""Another user's ids look exactly like ids that don't exist: status, headers, body, SQL.

Over every path of the application that names a response, session or item, so also over those that
are added later, and over every event of a socket that does.
"""

import asyncio
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from tests.api.tenants import Person
from tests.harness.service import timers
from tests.harness.stack import MODEL

TURN = {"model": MODEL, "input": "hi", "max_output_tokens": 8}
BODIES = {
    ("POST", "/v1/conversations/{session_id}"): {"metadata": {"a": "b"}},
    ("POST", "/v1/conversations/{session_id}/items"): {
        "items": [{"role": "user", "content": "hello"}]
    },
    ("PUT", "/v1/sessions/{session_id}/policy"): {"type": "last_turns", "turns": 1},
    ("POST", "/v1/responses/{response_id}/cancel"): {"keep": False},
}
OTHER_IDS = {"user_id", "key_id", "model"}  # for admins; of no user


@dataclass
class Ids:
    """What a victim has, or what nobody has."""

    session_id: str
    response_id: str
    item_id: str

    def nobody(self):
        """Ids of the same form and length."""
        return Ids(*(re.sub(r"\d", "0", one) for one in vars(self).values()))

    def swapped(self, text):
        """With nobody's ids in the place of these."""
        for name, value in vars(self).items():
            text = text.replace(f'"{value}"', f'"{getattr(self.nobody(), name)}"')
        return text

    def hidden(self, text):
        for name, value in vars(self).items():
            text = text.replace(value, f"<{name}>")
        return text


@contextmanager
def statements():
    """The SQL of everything that happens meanwhile."""
    seen = []

    def note(connection, cursor, statement, *_):
        seen.append(statement)

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        sa.event.remove(sa.engine.Engine, "before_cursor_execute", note)


@pytest.fixture
async def running(stack):
    async with stack(keys=True, keys_every_s=3600) as running:
        yield running


def stop_timers(running):
    """From now on there are no statements but those of requests."""
    service = running.served.service
    for task in (*timers(service), service.quotas._timer):  # noqa: SLF001 -- no statement but those of requests
        task.cancel()


async def things_of(person):
    """A session with a response and its items."""
    [response] = await person.chat("a secret")
    async with person.http() as http:
        listed = await http.get(f"/v1/responses/{response['id']}/input_items")
    session = response["conversation"]["id"]
    return Ids(session, response["id"], listed.json()["data"][0]["id"])


def paths(app):
    """(method, template) of every route with an id of some user's."""
    for route in app.routes:
        names = set(re.findall(r"{(\w+)", route.path))
        if names and not names & OTHER_IDS:
            assert names <= set(vars(Ids("", "", ""))), route.path
            for method in sorted(route.methods - {"HEAD"}):
                yield method, route.path


async def answer(http, method, path, ids, body):
    with statements() as sql:
        found = await http.request(method, path.format(**vars(ids)), json=body)
    headers = {k: ids.hidden(v) for k, v in found.headers.items() if k != "date"}
    return found.status_code, headers, ids.hidden(found.text), sql


async def assert_alike(http, method, path, real, body=None):
    await answer(http, method, path, real.nobody(), body)  # what is cached, is cached for both
    foreign = await answer(http, method, path, real, body)
    unknown = await answer(http, method, path, real.nobody(), body)
    assert foreign == unknown, (method, path)
    return foreign


async def everything_of(person, ids):
    async with person.http() as http:
        return [
            (await http.get(path.format(**vars(ids)))).text
            for path in (
                "/v1/sessions/{session_id}?include=page_table",
                "/v1/responses/{response_id}",
                "/v1/conversations/{session_id}",
                "/v1/conversations/{session_id}/items",
                "/v1/sessions",
            )
        ]


async def test_over_every_path_with_an_id(running):
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    ids = await things_of(ann)
    await running.idle()  # the hold after a request is over: nothing changes by itself
    stop_timers(running)
    before = await everything_of(ann, ids)
    found = list(paths(running.served.server.config.app))
    assert len(found) >= 17
    async with eve.http() as http:
        for method, path in found:
            status, _, text, sql = await assert_alike(
                http, method, path, ids, BODIES.get((method, path))
            )
            assert status == 404, (method, path, text)
            assert len(sql) >= 2  # BEGIN, and the look for the key; then the question itself
    assert await everything_of(ann, ids) == before


async def test_over_ids_in_bodies_and_queries(running):
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    ids, own = await things_of(ann), await things_of(eve)
    stop_timers(running)
    async with eve.http() as http:
        for name, value in (
            ("conversation", ids.session_id),
            ("conversation", {"id": ids.session_id}),
            ("previous_response_id", ids.response_id),
        ):
            for stream in (False, True):
                real = TURN | {name: value, "stream": stream}
                none = json.loads(ids.swapped(json.dumps(real)))
                foreign = await answer(http, "POST", "/v1/responses", ids, real)
                unknown = await answer(http, "POST", "/v1/responses", ids.nobody(), none)
                assert foreign == unknown
                assert foreign[0] == 404
        for path in (
            "/v1/sessions?after={session_id}",
            f"/v1/conversations/{own.session_id}/items?after={{item_id}}",
            f"/v1/responses/{own.response_id}/input_items?after={{item_id}}",
            f"/v1/conversations/{own.session_id}/items/{{item_id}}",
        ):
            await assert_alike(http, "GET", path, ids)


async def test_over_a_turn_that_runs(running):
    """In memory there is more of it than in SQL."""
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    idle = await things_of(ann)
    stop_timers(running)
    running.model.gate = threading.Event()
    async with ann.socket() as line, eve.http() as http:
        await line.create("more", conversation=idle.session_id, max_output_tokens=8)
        created = (await line.hear("response.created"))["response"]
        ids = Ids(idle.session_id, created["id"], idle.item_id)
        for method, path in paths(running.served.server.config.app):
            await assert_alike(http, method, path, ids, BODIES.get((method, path)))
        running.model.gate.set()
        ended = await line.hear("response.completed", "response.incomplete")
        assert (ended["response"]["incomplete_details"] or {}).get("reason") != "cancelled"


FRAMES = [
    {"type": "response.create", **TURN, "conversation": "{session_id}"},
    {"type": "response.create", **TURN, "previous_response_id": "{response_id}"},
    {"type": "response.create", **TURN, "generate": False, "conversation": "{session_id}"},
    {"type": "response.resume", "response_id": "{response_id}"},
    {"type": "response.resume", "response_id": "{response_id}", "starting_after": 1},
    {"type": "response.cancel", "response_id": "{response_id}"},
    {"type": "response.cancel", "response_id": "{response_id}", "keep": False, "stream_id": "a"},
    {"type": "session.update", "session": "{session_id}", "retention": "hold"},
    {"type": "session.update", "session": "{session_id}", "priority": "high", "ttl_s": 3},
    {
        "type": "session.update",
        "session": "{session_id}",
        "context_management": [{"type": "last_turns", "turns": 1}],
    },
    {"type": "session.close", "session": "{session_id}"},
]


def filled(frame, ids):
    pattern = r"{(\w+_id)}"
    return re.sub(pattern, lambda found: getattr(ids, found[1]), json.dumps(frame))


@pytest.mark.parametrize("runs", [False, True])
async def test_over_every_event_of_a_socket(running, runs):
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    ids = await things_of(ann)
    stop_timers(running)
    async with ann.socket() as victim, eve.socket() as line:
        if runs:
            running.model.gate = threading.Event()
            await victim.create("more", conversation=ids.session_id, max_output_tokens=8)
            created = (await victim.hear("response.created"))["response"]
            ids = Ids(ids.session_id, created["id"], ids.item_id)
        for frame in FRAMES:
            answers = []
            for who in (ids.nobody(), ids, ids.nobody()):
                with statements() as sql:
                    await line.ws.send(filled(frame, who))
                    event = await asyncio.wait_for(line.ws.recv(), 60)
                answers.append((who.hidden(event), sql))
            assert answers[1] == answers[2], frame
            assert json.loads(answers[1][0])["status"] == 404
        if runs:
            running.model.gate.set()
            ended = await victim.hear("response.completed", "response.incomplete")
            assert (ended["response"]["incomplete_details"] or {}).get("reason") != "cancelled"


async def test_every_event_that_a_client_may_send_is_tried():
    from sessiond.api.protocol import requests

    source = requests.__loader__.get_source(requests.__name__)
    known = set(re.findall(r'"((?:response|session)\.[a-z]+)"', source))
    assert known == {frame["type"] for frame in FRAMES}
