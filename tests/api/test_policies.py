"""Policies on the wire: who may set which, what holds then, and what a client is told."""

import asyncio
import json
from contextlib import asynccontextmanager

import httpx
import pytest

from engine.errors import ConfigError
from policies.registry import ContextPolicyRegistry
from sessiond.assembly import default_policy
from sessiond.domain import Caller, PolicyChoice
from sessiond.errors import RequestError
from sessiond.settings import Settings
from tests.api.schemas import validate_event
from tests.harness.stack import MODEL

ENDINGS = {"response.completed", "response.incomplete", "response.failed", "error"}
LAST_TURN = {"type": "last_turns", "turns": 1}
SECRET = "The secret is xyzzy."


class Keys:
    """Two users, by their keys; Ann is an admin."""

    async def caller(self, key):
        if key not in {"ann", "bob"}:
            raise RequestError("invalid_api_key", "no such key")
        return Caller(user_id=key, is_admin=key == "ann", salt=key.encode())


@pytest.fixture
def two_users(stack):
    return lambda **options: stack(auth=Keys(), **options)


def http_of(running, key="ann"):
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(
        base_url=running.served.http_url, headers=headers, trust_env=False, timeout=60
    )


@asynccontextmanager
async def socket_of(running, key="ann"):
    headers = {"Authorization": f"Bearer {key}"}
    async with running.served.connect(additional_headers=headers) as ws:
        yield Talk(ws)


class Talk:
    """A socket whose events are all valid."""

    def __init__(self, ws):
        self._ws = ws

    async def say(self, **frame):
        await self._ws.send(json.dumps(frame))

    async def hear(self):
        event = json.loads(await asyncio.wait_for(self._ws.recv(), 60))
        validate_event(event)
        return event

    async def turn(self, text, **fields):
        """Events of a whole turn."""
        fields = {"max_output_tokens": 16, **fields}
        await self.say(type="response.create", model=MODEL, input=text, **fields)
        events = [await self.hear()]
        while events[-1]["type"] not in ENDINGS:
            events.append(await self.hear())
        return events

    async def chat(self, turns, **fields):
        """A conversation; returns its id and all events of its last turn."""
        events = await self.turn("turn 0", **fields)
        for number in range(1, turns):
            tip = events[-1]["response"]["id"]
            events = await self.turn(f"turn {number}", previous_response_id=tip)
        return events[-1]["response"]["conversation"]["id"], events


def changes(events):
    return [event for event in events if event["type"] == "session.context_changed"]


# --- one session's policy ---------------------------------------------------------------------


async def test_a_sessions_policy_is_set_shown_kept_to_and_cleared(two_users):
    async with two_users() as running, socket_of(running) as talk, http_of(running) as http:
        session, _ = await talk.chat(3)
        path = f"/v1/sessions/{session}/policy"
        answer = await http.put(path, json=LAST_TURN)
        assert (answer.status_code, answer.json()["policy"]) == (200, "last_turns")

        events = await talk.turn("more", conversation=session)
        (change,) = changes(events)
        assert (change["session"], change["dropped_turns"]) == (session, 2)
        assert change["tokens_after"] < change["tokens_before"]
        assert (change["context"], change["fidelity"]) == ("trimmed", "exact")
        assert events[0]["type"] == "response.created"
        assert events[-1]["response"]["sessiond"]["context"] == "trimmed"

        assert (await http.get(f"/v1/sessions/{session}")).json()["policy"] == "last_turns"
        answer = await http.delete(path)
        assert (answer.status_code, answer.json()["policy"]) == (200, "none")


async def test_m08_last_turns_is_cut_by_tokens_and_by_turns_whichever_comes_first(two_users):
    policy = {"type": "last_turns", "turns": 4, "max_tokens": 120, "trim_to": 1}
    async with two_users() as running, socket_of(running) as talk, http_of(running) as http:
        session, _ = await talk.chat(5)
        assert (await http.put(f"/v1/sessions/{session}/policy", json=policy)).status_code == 200
        (by_turns,) = changes(await talk.turn("six", conversation=session))
        (by_tokens,) = changes(await talk.turn("seven " * 10, conversation=session))
    assert by_turns["dropped_turns"] == 1
    assert by_tokens["dropped_turns"] > 1
    assert by_tokens["tokens_after"] + 16 <= 120


async def test_a_wrong_policy_of_a_session_changes_nothing_and_is_named(two_users):
    async with two_users() as running, socket_of(running) as talk, http_of(running) as http:
        session, _ = await talk.chat(1)
        for body, param in [
            ({"type": "last_turns", "turns": -1}, "turns"),
            ({"type": "last_turns", "turns": "five"}, "turns"),
            ({"type": "last_turns", "max_tokens": 0}, "max_tokens"),
            ({"type": "last_turns", "keep_turns": 5}, "keep_turns"),
            ({"type": "last_turns", "fidelity": "rough"}, "fidelity"),
            ({"type": "window"}, "type"),
            ({}, "type"),
        ]:
            answer = await http.put(f"/v1/sessions/{session}/policy", json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (400, "invalid_value")
            assert error["param"] == param
        assert (await http.get(f"/v1/sessions/{session}")).json()["policy"] == "none"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_anothers_session_is_not_there(two_users, method):
    async with two_users() as running, socket_of(running) as talk:
        session, _ = await talk.chat(1)
        async with http_of(running, "bob") as bob:
            body = json.dumps(LAST_TURN)
            for one in (session, "conv_none"):
                answer = await bob.request(method, f"/v1/sessions/{one}/policy", content=body)
                assert answer.status_code == 404
                assert answer.json()["error"]["code"] == "conversation_not_found"


# --- session.update ---------------------------------------------------------------------------


async def test_session_update_says_what_holds_then(two_users):
    async with two_users() as running, socket_of(running) as talk:
        session, _ = await talk.chat(1)
        await talk.say(
            type="session.update",
            session=session,
            stream_id="a",
            context_management=[{**LAST_TURN, "fidelity": "exact"}],
            retention="hold",
            ttl_s=30,
            priority="low",
        )
        assert await talk.hear() == {
            "type": "session.updated",
            "session": session,
            "policy": "last_turns",
            "fidelity": "exact",
            "retention": "hold",
            "priority": "low",
            "stream_id": "a",
        }
        await talk.say(type="session.update", session=session, context_management=[])
        updated = await talk.hear()
        assert (updated["policy"], updated["retention"]) == ("none", "hold")
        assert "stream_id" not in updated


@pytest.mark.parametrize("kind", ["session.update", "session.close"])
async def test_a_frame_about_anothers_session_is_refused_and_changes_nothing(two_users, kind):
    async with two_users() as running, socket_of(running) as ann, socket_of(running, "bob") as bob:
        session, _ = await ann.chat(1)
        fields = {"priority": "low"} if kind == "session.update" else {}
        await bob.say(type=kind, session=session, stream_id="b", **fields)
        error = await bob.hear()
        assert (error["status"], error["error"]["code"]) == (404, "conversation_not_found")
        assert error["stream_id"] == "b"
        async with http_of(running) as http:
            view = (await http.get(f"/v1/sessions/{session}")).json()
        assert (view["state"], view["priority"]) == ("idle", "normal")


async def test_a_wrong_update_is_named_on_its_lane_and_the_socket_goes_on(two_users):
    async with two_users() as running, socket_of(running) as talk:
        session, _ = await talk.chat(1)
        management = [{"type": "last_turns", "turns": "many"}]
        await talk.say(
            type="session.update", session=session, stream_id="a", context_management=management
        )
        error = await talk.hear()
        assert error["error"]["param"] == "turns"
        assert error["stream_id"] == "a"
        assert (await talk.turn("on", conversation=session))[-1]["type"] != "error"


# --- park -------------------------------------------------------------------------------------


async def test_a_session_is_parked_by_its_owner_only(two_users):
    async with two_users() as running, socket_of(running) as talk:
        session, _ = await talk.chat(1)
        async with http_of(running, "bob") as bob:
            answer = await bob.post(f"/v1/sessions/{session}/park")
            assert answer.json()["error"]["code"] == "conversation_not_found"
        async with http_of(running) as ann:
            answer = await ann.post(f"/v1/sessions/{session}/park")
            assert (answer.status_code, answer.json()["id"]) == (200, session)
        assert (await talk.turn("on", conversation=session))[-1]["type"] == "response.completed"


# --- precedence -------------------------------------------------------------------------------


async def test_request_over_session_over_user_over_server(two_users):
    server = PolicyChoice(type="token_budget", parameters={"max_tokens": 4000})
    async with (
        two_users(policy=server) as running,
        socket_of(running) as talk,
        http_of(running) as http,
    ):
        session, _ = await talk.chat(3)

        async def in_force():
            return (await http.get(f"/v1/sessions/{session}")).json()["policy"]

        assert await in_force() == "token_budget"
        user = {"type": "summarize", "keep_turns": 3}
        answer = await http.put("/admin/users/ann/policy", json=user)
        assert answer.json() == {"user": "ann", "policy": {**user, "fidelity": "exact"}}
        assert await in_force() == "summarize"
        await http.put(f"/v1/sessions/{session}/policy", json={"type": "none"})
        assert await in_force() == "none"
        events = await talk.turn("more", conversation=session, context_management=[LAST_TURN])
        assert changes(events)[0]["dropped_turns"] == 2
        assert await in_force() == "none"  # a request's is for its turn only
        await http.delete(f"/v1/sessions/{session}/policy")
        answer = await http.delete("/admin/users/ann/policy")
        assert answer.json() == {"user": "ann", "policy": None}
        assert await in_force() == "token_budget"


@pytest.mark.parametrize("user", ["ann", "bob"])
async def test_only_an_admin_sets_the_policies_of_users(two_users, user):
    async with two_users() as running, http_of(running, "bob") as bob:
        for answer in (
            await bob.put(f"/admin/users/{user}/policy", json=LAST_TURN),
            await bob.delete(f"/admin/users/{user}/policy"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (
                403,
                "permission_denied",
            )


# --- T21: nothing is cut off in silence -------------------------------------------------------


async def overflow(talk, **fields):
    """A conversation longer than a window of 512; returns the events of its turns."""
    turns = [await talk.turn("turn 0 " * 10, instructions=SECRET, **fields)]
    for number in range(1, 9):
        if turns[-1][-1]["type"] in {"error", "response.failed"}:
            break
        tip = turns[-1][-1]["response"]["id"]
        text = f"turn {number} " * 10
        turns.append(await talk.turn(text, previous_response_id=tip, **fields))
    return turns


async def test_the_end_of_a_turn_that_is_too_long_is_kept_where_both_sides_say_so(two_users):
    text = "".join(chr(ord("a") + number % 26) for number in range(900))
    keep_end = {"type": "sliding_window", "fidelity": "exact", "oversize": "keep_end"}
    async with (
        two_users(max_model_len=512) as running,
        socket_of(running) as talk,
        http_of(running) as http,
    ):
        session, _ = await talk.chat(1)
        answer = await http.put(f"/v1/sessions/{session}/policy", json=keep_end)
        assert answer.status_code == 200
        refused = (await talk.turn(text, conversation=session))[-1]
        assert (refused["type"], refused["error"]["code"]) == ("error", "context_length_exceeded")
        events = await talk.turn(text, conversation=session, truncation="auto")
        told = [(change["reason"], change["dropped_turns"]) for change in changes(events)]
        assert told == [("trimmed", 1), ("oversize", 0)]
        response = events[-1]["response"]
        assert response["sessiond"]["context"] == "trimmed"
        assert response["usage"]["input_tokens"] == changes(events)[1]["tokens_after"] < 512
        after = await talk.turn("and then?", conversation=session)
        assert after[-1]["type"] in {"response.completed", "response.incomplete"}


@pytest.mark.parametrize("fidelity", ["exact", "shifted"])
async def test_t21_a_full_window_keeps_the_system_prompt_and_tells_the_counts(two_users, fidelity):
    window = PolicyChoice(type="sliding_window", fidelity=fidelity)
    async with two_users(policy=window, max_model_len=512) as running, socket_of(running) as talk:
        turns = await overflow(talk)
        assert all(events[-1]["type"] != "error" for events in turns)
        trimmed = [events for events in turns if changes(events)]
        assert trimmed
        for events in trimmed:
            (change,) = changes(events)
            assert change["dropped_turns"] > 0
            assert len(SECRET) < change["tokens_after"] < change["tokens_before"]
            assert events[0]["type"] == "response.created"
            ours = events[-1]["response"]["sessiond"]
            assert (ours["context"], ours["fidelity"]) == ("trimmed", fidelity)
        session = turns[-1][-1]["response"]["conversation"]["id"]
        async with http_of(running) as http:
            view = (await http.get(f"/v1/sessions/{session}")).json()
        assert view["instructions"] == SECRET
        system = view["turns"][0]
        assert (system["role"], system["kept"]) == ("system", system["tokens"])


async def test_t21_where_cutting_is_forbidden_the_turn_is_refused_and_nothing_is_lost(two_users):
    window = PolicyChoice(type="sliding_window")
    async with two_users(policy=window, max_model_len=512) as running, socket_of(running) as talk:
        turns = await overflow(
            talk, truncation="disabled", context_management=[{"type": "sliding_window"}]
        )
        *before, refused = turns
        assert not any(changes(events) for events in turns)
        last = refused[-1]
        code = (last.get("error") or last["response"]["error"])["code"]
        assert code == "context_length_exceeded"
        tip = before[-1][-1]["response"]["id"]
        again = await talk.turn("on", previous_response_id=tip)
        assert again[-1]["type"] == "response.completed"


def test_the_servers_policy_declares_what_a_requests_may():
    text = "last_turns:turns=9,under_pressure=trim_history,oversize=keep_end"
    choice = default_policy(Settings(context_policy=text), ContextPolicyRegistry())
    assert choice == PolicyChoice(
        type="last_turns",
        parameters={"turns": 9},
        oversize="keep_end",
        under_pressure="trim_history",
    )
    for wrong in ("under_pressure=trim", "oversize=1"):
        with pytest.raises(ConfigError, match=wrong.split("=")[0]):
            default_policy(Settings(context_policy=f"last_turns:{wrong}"), ContextPolicyRegistry())
