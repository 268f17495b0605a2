"""What holds on every path: whose page may ask, who needs a key, and that no name is a file's."""

import itertools
import time
from pathlib import Path

import httpx
import pytest
from starlette.routing import Route, WebSocketRoute
from websockets.exceptions import InvalidStatus

from sessiond.api import auth
from sessiond.api.access import OPEN_PATHS
from sessiond.api.auth import KeyAuth
from sessiond.api_keys import new_api_key
from sessiond.errors import RequestError
from tests.api.tenants import Person

CANARY = "canary_file"
STRANGE = [
    "../../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "/etc/passwd",
    "..\\..\\windows", f"{CANARY}", f"./{CANARY}", f"..%00{CANARY}", "con", "~root", "$HOME", "|id",
    "`id`", "file:///etc/passwd", "a" * 3000, "%00", "%ff%fe", "conv_1;rm -rf", "🧙",
]  # fmt: skip


def every_route(running):
    """Each path with each of its methods, with a word in the place of ids."""
    app = running.served.server.config.loaded_app
    while not hasattr(app, "routes"):
        app = app.app
    for route in app.routes:
        if isinstance(route, Route):
            for method in sorted(route.methods):
                yield method, route.path
        elif isinstance(route, WebSocketRoute):
            yield "GET", route.path


def filled(path, word):
    parts = [word if part.startswith("{") else part for part in path.split("/")]
    return "/".join(parts)


def client(running, **headers):
    return httpx.AsyncClient(
        base_url=running.served.http_url, trust_env=False, headers=headers, timeout=60
    )


@pytest.mark.parametrize(
    ("headers", "param"),
    [
        ({"Host": "evil.example"}, "Host"),
        ({"Host": "127.0.0.1.evil.example"}, "Host"),
        ({"Origin": "https://evil.example"}, "Origin"),
        ({"Origin": "null"}, "Origin"),
    ],
)
async def test_pages_of_others_reach_no_route(stack, headers, param):
    async with stack(keys=True) as running, client(running, **headers) as http:
        routes = [*every_route(running), ("GET", "/console"), ("PUT", "/metrics")]
        assert {"/metrics", "/openapi.json", "/health/live"} <= {path for _, path in routes}
        assert len(routes) > 40
        for method, path in routes:
            if param == "Host" and (path == "/metrics" or path.startswith("/health")):
                continue  # probes name other hosts: tests/api/test_probes.py
            answer = await http.request(method, filled(path, "x"))
            assert answer.status_code == 403, (method, path)
            assert "access-control-allow-origin" not in answer.headers
            if method != "HEAD":
                assert answer.json()["error"]["param"] == param, (method, path)
        host = headers.get("Host", "localhost")
        with pytest.raises(InvalidStatus) as refused:
            async with running.served.connect(
                origin=headers.get("Origin"), additional_headers={"Host": host}
            ):
                pass
        assert refused.value.response.status_code in {400, 403}  # two hosts are bad already


async def test_every_route_but_the_open_ones_needs_a_key(stack):
    async with stack(keys=True) as running, client(running) as http:
        for method, path in every_route(running):
            answer = await http.request(method, filled(path, "x"))
            if path in OPEN_PATHS:
                assert answer.status_code in {200, 307, 503}, path
            else:
                assert answer.status_code == 401, (method, path)


async def test_no_name_of_a_client_is_a_file(stack, tmp_path, monkeypatch):
    """Strange names in each place of each path, in ids and in models: nothing is opened or made."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / CANARY).write_text(CANARY)
    opened = []
    real = Path.open

    def watched(self, *arguments, **options):
        opened.append(self)
        return real(self, *arguments, **options)

    monkeypatch.setattr(Path, "open", watched)
    before = sorted(path.name for path in tmp_path.iterdir())
    async with stack() as running, client(running) as http:
        words = itertools.cycle(STRANGE)
        for method, path in every_route(running):
            if path == "/admin/drain":
                continue
            for word in itertools.islice(words, 4) if "{" in path else ():
                answer = await http.request(method, filled(path, word))
                assert answer.status_code < 500, (method, path, word)
                assert "root:" not in answer.text
        for word in STRANGE[:12]:
            for field in ("model", "conversation", "previous_response_id"):
                body = {"model": "fake", "input": "a", field: word}
                answer = await http.post("/v1/responses", json=body)
                assert 400 <= answer.status_code < 500, (field, word)
            answer = await http.post("/v1/conversations", json={"id": word})
            assert answer.status_code == (200 if word in {CANARY, "con"} else 400), word
            answer = await http.post(
                "/v1/responses",
                json={"model": "fake", "input": "a", "max_output_tokens": 1},
                headers={"X-Session-Id": word.encode(), "Idempotency-Key": "k" + word[:40]},
            )
            assert answer.status_code == 200, answer.text
        await running.served.service.drain()
    names = {path.name for path in tmp_path.iterdir()}
    assert [name for name in names if name not in before and not name.startswith("db")] == []
    assert [path for path in opened if CANARY in str(path) or "passwd" in str(path)] == []


async def test_an_unknown_key_id_takes_as_long_as_a_wrong_secret(stack, monkeypatch):
    """The same work is done: one look-up, one hash, one comparison in constant time."""
    calls = []
    real = auth.is_secret
    monkeypatch.setattr(auth, "is_secret", lambda *a: (calls.append(a), real(*a))[1])
    async with stack(keys=True) as running:
        ann = await Person.join(running, "ann")
        check = KeyAuth(running.store.accounts)
        wrong = f"{ann.key.partition('.')[0]}.{new_api_key().secret}"
        keys = {"id": new_api_key().text, "secret": wrong}
        answers, taken = {}, {name: [] for name in keys}
        for name, key in [*keys.items()] * 20:  # by turns, each at its fastest: others want the CPU
            began = time.perf_counter()
            with pytest.raises(RequestError) as refused:
                await check.caller(key)
            taken[name].append(time.perf_counter() - began)
            answers[name] = (refused.value.code, refused.value.message)
        assert answers["id"] == answers["secret"]
        assert len(calls) == 40
        assert 1 / 20 < min(taken["id"]) / min(taken["secret"]) < 20


async def test_ids_of_others_and_ids_that_are_not_there_are_told_alike(stack):
    async with stack(keys=True) as running:
        ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
        (response,) = await ann.chat("hello")
        pairs = {
            "/v1/responses/{}": (response["id"], "resp_none"),
            "/v1/conversations/{}": (response["conversation"]["id"], "conv_none"),
            "/v1/sessions/{}": (response["conversation"]["id"], "conv_none"),
        }
        async with bob.http() as http:
            for path, (there, absent) in pairs.items():
                for method in ("GET", "DELETE"):
                    told = await http.request(method, path.format(there))
                    plain = await http.request(method, path.format(absent))
                    assert told.status_code == plain.status_code == 404
                    assert told.text.replace(there, "ID") == plain.text.replace(absent, "ID")
        async with ann.http() as http:
            assert (await http.get(f"/v1/responses/{response['id']}")).status_code == 200
