"""What users share of memory: their own prefixes with themselves, nothing with each other."""

import asyncio
import dataclasses

import pytest

from sessiond.api.auth import KeyAuth
from sessiond.store.store import Store
from tests.api.tenants import Person, cached_tokens
from tests.harness.stack import MODEL

PROMPT = "This is what everybody asks first. " * 8  # many whole blocks


@pytest.fixture
async def running(stack):
    async with stack(keys=True) as running:
        yield running


async def first_cached(person, **fields):
    """Cached tokens of a new conversation's first turn."""
    [response] = await person.chat(PROMPT, **fields)
    return cached_tokens(response)


async def test_a_users_own_prefix_hits_under_every_key_and_another_users_never(running):
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    accounts = running.served.gateway.accounts
    assert await first_cached(ann) == 0
    hit = await first_cached(ann)
    assert hit >= len(PROMPT) - 16
    assert await first_cached(bob) == 0
    assert await first_cached(bob) == hit
    ann.key = (await accounts.rotate_key("x", ann.id, ann.key_id)).key.text
    assert await first_cached(ann) == hit
    assert await first_cached(await Person.join(running, "eve", "admin")) == 0  # whatever her role


async def test_nothing_in_a_request_moves_it_to_another_tenant(running):
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    await first_cached(ann)
    salt = (await running.store.accounts.key_owner(ann.key_id)).salt.hex()
    metadata = {"salt": salt, "user": ann.id, "user_id": ann.id}
    assert await first_cached(eve, metadata=metadata, user=ann.id) == 0


async def test_sockets_and_requests_of_a_user_are_one_tenant(running):
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    await first_cached(ann)
    async with ann.socket() as line, bob.socket() as other:
        assert cached_tokens((await line.turn(PROMPT))["response"]) > 0
        assert cached_tokens((await other.turn(PROMPT))["response"]) == 0


async def test_a_conversation_that_is_lost_and_computed_again_stays_its_tenants(running):
    """The salt comes with the session's every way into the engine."""
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    async with ann.socket() as line:
        tip = (await line.turn(PROMPT))["response"]["id"]
    await running.idle()
    async with ann.socket() as line:  # set again from SQL: a fork, a continuation
        for _ in range(2):
            turn = await line.turn("more", previous_response_id=tip)
            assert cached_tokens(turn["response"]) > 0
    assert await first_cached(bob) == 0


async def test_many_at_once_hit_their_own_only(running):
    """Sessions that start together wait for a common prefix; those of others are no such."""
    people = [await Person.join(running, f"p{number}") for number in range(4)]
    cached = await asyncio.gather(*(first_cached(one) for one in people for _ in range(3)))
    for number in range(4):
        own = cached[3 * number : 3 * number + 3]
        assert min(own) == 0  # one of them computed it
    assert len([count for count in cached if count == 0]) >= 4


async def test_a_salt_is_secret_random_and_outlasts_the_server(running):
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    one, other = [await KeyAuth(running.store.accounts).caller(person.key) for person in (ann, bob)]
    assert one.salt != other.salt
    assert len(one.salt) == 32
    again = Store(running.store.database.engines[0].url.render_as_string(hide_password=False))
    try:
        assert await KeyAuth(again.accounts).caller(ann.key) == one
    finally:
        await again.close()
    root = await Person.join(running, "root", "admin")
    async with root.http() as http:
        for path in ("/admin/users", f"/admin/users/{ann.id}", "/admin/audit"):
            text = (await http.get(path)).text
            assert "salt" not in text
            assert one.salt.hex() not in text


@pytest.mark.parametrize("header", ["X-Session-Id", "x-session-id", "X_Session_Id"])
async def test_t58_a_session_header_is_echoed_and_opens_nothing(running, header):
    """T58: a name for affinity, spelt as proxies like it; the reply says what was reused."""
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    [secret] = await ann.chat(PROMPT)
    session = secret["conversation"]["id"]
    async with eve.http() as http:
        answer = await http.post(
            "/v1/responses",
            json={"model": MODEL, "input": PROMPT, "max_output_tokens": 8},
            headers={header: session},
        )
        assert answer.headers["x-session-id"] == session  # what she said herself
        assert answer.json()["conversation"]["id"] != session
        assert answer.json()["sessiond"]["reused_tokens"] == 0
        [own] = (await http.get("/v1/sessions", headers={header: session})).json()["data"]
        assert own["id"] == answer.json()["conversation"]["id"]
    async with ann.http() as http:
        body = {"model": MODEL, "input": "more", "conversation": session, "max_output_tokens": 8}
        answer = await http.post("/v1/responses", json=body, headers={header: session})
        assert answer.headers["x-session-id"] == session
        assert answer.json()["sessiond"]["reused_tokens"] > 0


async def test_t39_t41_all_keys_of_a_user_are_one_user_to_limits_and_shares(running):
    """T39, T41: limits and fair shares go by user and salt, so another key buys no second one."""
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    second = await running.served.gateway.accounts.add_key("x", ann.id)
    auth = KeyAuth(running.store.accounts)
    one, same, other = [await auth.caller(k) for k in (ann.key, second.key.text, bob.key)]
    assert dataclasses.replace(one, key_id=None) == dataclasses.replace(same, key_id=None)
    assert one.key_id != same.key_id
    assert (one.user_id == other.user_id, one.salt == other.salt) == (False, False)


async def test_lists_show_what_is_ones_own(running):
    ann, bob = await Person.join(running, "ann"), await Person.join(running, "bob")
    await ann.chat("one", "two")
    await ann.chat("three")
    async with ann.http() as http, bob.http() as his:
        assert len((await http.get("/v1/sessions")).json()["data"]) == 2
        assert (await his.get("/v1/sessions")).json()["data"] == []
