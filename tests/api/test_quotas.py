"""Quotas on the wire: admins' routes, 429 with its headers, and what each answer says is left."""

import json
from contextlib import asynccontextmanager

import pytest

from sessiond.quota import QUOTA_FIELDS
from tests.api.test_policies import Keys, Talk, http_of, socket_of

EVERYTHING = {
    "max_sessions": 3,
    "max_concurrent_turns": 4,
    "max_resident_blocks": 20,
    "max_host_bytes": 2**30,
    "max_disk_bytes": 2**40,
    "tokens_per_minute": 1000,
    "tokens_per_day": 100_000,
    "max_context_tokens": 900,
    "max_priority": "normal",
    "weight": 2.0,
}
NO_LIMITS = {**dict.fromkeys(EVERYTHING), "weight": 1.0}
TURN = {"input": "x" * 40, "max_output_tokens": 8}


@pytest.fixture
def two_users(stack):
    """Ann, an admin, and Bob, who is in the database."""

    @asynccontextmanager
    async def serve():
        async with stack(auth=Keys()) as running:
            await running.store.set_user_policy("bob", None, 0.0)
            yield running

    return serve


async def test_the_quota_of_a_user_who_is_not_there_is_not_found(two_users):
    async with two_users() as running, http_of(running) as ann:
        for method in ("GET", "PUT"):
            answer = await ann.request(method, "/admin/users/bobb/quota", content="{}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


async def test_a_change_is_written_down(two_users):
    async with two_users() as running, http_of(running) as ann:
        await put(ann, max_sessions=7)
        (row,) = (await ann.get("/admin/audit?limit=1")).json()["data"]
    assert (row["actor"], row["action"], row["subject"]) == ("ann", "user.quota", "bob")
    assert row["detail"] == {"max_sessions": 7}


async def put(http, user="bob", **limits):
    answer = await http.put(f"/admin/users/{user}/quota", json=limits)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_limits_are_set_one_by_one_and_shown_with_what_was_taken(two_users):
    async with two_users() as running, http_of(running) as ann:
        body = (await ann.get("/admin/users/bob/quota")).json()
        assert {name: body[name] for name in QUOTA_FIELDS} == NO_LIMITS
        assert (await put(ann, **EVERYTHING))["max_priority"] == "normal"
        body = await put(ann, max_sessions=None, weight=None)
        expected = {**EVERYTHING, "max_sessions": None, "weight": 1.0}
        assert {name: body[name] for name in QUOTA_FIELDS} == expected
        async with http_of(running, "bob") as bob:
            usage = (await bob.post("/v1/responses", json=TURN)).json()["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        taken = usage["total_tokens"] - cached
        body = (await ann.get("/admin/users/bob/quota")).json()
        assert body["user"] == "bob"
        assert (await ann.get("/admin/users/bob")).json()["usage"] == body["usage"]
        assert body["usage"]["tokens_today"] == body["usage"]["tokens_total"] == taken
        assert (body["usage"]["sessions"], body["usage"]["concurrent_turns"]) == (1, 0)


@pytest.mark.parametrize(
    ("limits", "param", "code"),
    [
        ({"tokens_per_minute": -1}, "tokens_per_minute", "invalid_value"),
        ({"tokens_per_day": "many"}, "tokens_per_day", "invalid_value"),
        ({"max_sessions": True}, "max_sessions", "invalid_value"),
        ({"max_sessions": 1.5}, "max_sessions", "invalid_value"),
        ({"max_disk_bytes": 2**53}, "max_disk_bytes", "invalid_value"),
        ({"max_priority": "urgent"}, "max_priority", "invalid_value"),
        ({"weight": 0}, "weight", "invalid_value"),
        ({"weight": 1000}, "weight", "invalid_value"),
        ({"max_session": 1}, "max_session", "unsupported_parameter"),
    ],
)
async def test_a_wrong_limit_is_named_and_changes_nothing(two_users, limits, param, code):
    async with two_users() as running, http_of(running) as ann:
        await put(ann, max_context_tokens=500)
        answer = await ann.put("/admin/users/bob/quota", json={"max_context_tokens": 9} | limits)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
        assert "must be" in error["message"]
        body = (await ann.get("/admin/users/bob/quota")).json()
        assert {name: body[name] for name in QUOTA_FIELDS} == NO_LIMITS | {
            "max_context_tokens": 500
        }


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_quotas_are_for_admins_only(two_users, method):
    async with two_users() as running, http_of(running, "bob") as bob:
        answer = await bob.request(method, "/admin/users/bob/quota", content="{}")
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "permission_denied")


async def test_answers_over_http_say_what_is_left_and_429_when_to_come_back(two_users):
    async with two_users() as running, http_of(running) as ann, http_of(running, "bob") as bob:
        await put(ann, tokens_per_day=150, max_concurrent_turns=2)
        for body in (TURN, {**TURN, "input": "y" * 40, "stream": True}):
            answer = await bob.post("/v1/responses", json=body)
            assert answer.status_code == 200
            headers = answer.headers
            assert headers["x-ratelimit-limit-requests"] == "2"
            assert headers["x-ratelimit-remaining-requests"] == "1"
            assert headers["x-ratelimit-limit-tokens"] == "150"
            assert 0 <= int(headers["x-ratelimit-remaining-tokens"]) < 150
            assert headers["x-ratelimit-reset-tokens"].endswith("s")
        answer = await bob.post("/v1/responses", json={**TURN, "input": "z" * 90})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (429, "quota_exceeded")
        assert "tokens_per_day" in error["message"]
        assert 1 <= int(answer.headers["Retry-After"]) <= 86_400
        assert answer.headers["x-ratelimit-reset-tokens"] == f"{answer.headers['Retry-After']}s"
        answer = await ann.post("/v1/responses", json=TURN)
        assert answer.status_code == 200
        assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
        scrape = (await ann.get("/metrics")).text
        assert 'sessiond_quota_rejections_total{reason="tokens_per_day"} 1.0' in scrape
        assert 'sessiond_quota_rejections_total{reason="max_sessions"} 0.0' in scrape


async def test_a_socket_says_what_is_left_at_its_upgrade_and_in_its_errors(two_users):
    async with two_users() as running, http_of(running) as ann:
        await put(ann, tokens_per_minute=20, max_sessions=0)
        headers = {"Authorization": "Bearer bob"}
        async with running.served.connect(additional_headers=headers) as ws:
            assert ws.response.headers["x-ratelimit-limit-tokens"] == "20"
            assert ws.response.headers["x-ratelimit-remaining-tokens"] == "20"
            talk = Talk(ws)
            (refused,) = await talk.turn("hi", stream_id="a")
            assert (refused["status"], refused["stream_id"]) == (429, "a")
            assert refused["error"]["code"] == "quota_exceeded"
            assert refused["error"]["headers"]["x-ratelimit-limit-tokens"] == "20"
            assert "retry-after" not in refused["error"]["headers"], "no waiting helps"
            await put(ann, max_sessions=None, tokens_per_minute=None)
            assert (await talk.turn("hi"))[-1]["type"] != "error", "the socket goes on"
        async with running.served.connect(additional_headers=headers) as ws:
            assert not [name for name in ws.response.headers if name.startswith("x-ratelimit")]


async def test_a_turn_refused_for_a_minute_tells_a_socket_when_to_come_back(two_users):
    async with two_users() as running, http_of(running) as ann:
        await put(ann, tokens_per_minute=70)
        async with socket_of(running, "bob") as talk:
            events = [await talk.turn("y" * 40, max_output_tokens=8) for _ in range(3)]
        refused = next(found[0] for found in events if found[0]["type"] == "error")
        assert refused["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused["error"]["headers"]["retry-after"]) <= 60


async def test_t58_a_session_header_of_any_spelling_is_echoed_and_the_reuse_told(two_users):
    async with two_users() as running, http_of(running, "bob") as bob:
        first = await bob.post("/v1/responses", json=TURN)
        session = first.json()["conversation"]["id"]
        assert first.headers["X-Session-Id"] == session
        for name in ("X-Session-Id", "x_session_id", "X-SESSION-ID"):
            body = {**TURN, "conversation": session}
            answer = await bob.post("/v1/responses", content=json.dumps(body), headers={name: "me"})
            assert answer.headers["X-Session-Id"] == "me"
            told = answer.json()
            assert told["conversation"]["id"] == session
            assert told["sessiond"]["reused_tokens"] > 0
