"""Keys at the door: who is let in, how others are refused, and what a revoked key ends at once."""

import asyncio
import json
import logging
import threading

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from sessiond.api.auth import KeyAuth
from sessiond.api.key_watch import KeyWatch
from sessiond.api_keys import new_api_key
from sessiond.errors import RequestError
from sessiond.store.account_records import KeyOwner
from sessiond.store.errors import StoreError
from tests.api.hooks import Cancels, Steps
from tests.api.tenants import Person
from tests.harness.stack import MODEL

OPEN = ("/health/live", "/health/ready", "/metrics")
CLOSED = ("/health/capacity", "/v1/models", "/v1/sessions", "/admin/memory", "/nowhere")


@pytest.fixture
def keyed(stack):
    return lambda **options: stack(keys=True, **options)


def bare(running, **headers):
    return httpx.AsyncClient(
        base_url=running.served.http_url, headers=headers, trust_env=False, timeout=60
    )


async def test_a_good_key_is_let_in_by_header_and_by_subprotocol(keyed):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        async with ann.http() as http:
            assert (await http.get("/v1/models")).status_code == 200
        async with ann.socket() as line:
            assert (await line.turn("hi"))["type"] == "response.completed"
        offered = [f"openai-insecure-api-key.{ann.key}", "realtime"]
        async with running.served.connect(subprotocols=offered) as ws:
            assert ws.subprotocol == "realtime"  # the key is not echoed
            assert ann.key not in str(ws.response.headers)


def wrong_keys(person):
    secret = person.key.partition(".")[2]
    other = "A" if secret[-1] != "A" else "B"
    return {
        "no header": None,
        "no bearer": "Basic abc",
        "empty": "Bearer",
        "not a key": "Bearer unused",
        "wrong secret": f"Bearer {person.key[:-1]}{other}",
        "unknown id": f"Bearer sk-{'0' * 16}.{secret}",
        "too long": "Bearer " + "x" * 5000,
    }


async def test_other_keys_are_refused_alike_on_http_and_before_the_upgrade(keyed):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        for name, value in wrong_keys(ann).items():
            headers = {"Authorization": value} if value is not None else {}
            async with bare(running, **headers) as http:
                answers = [await http.get(path) for path in CLOSED]
                answers.append(await http.post("/v1/responses", json={"input": "hi"}))
                for path in OPEN:
                    assert (await http.get(path)).status_code == 200
            for answer in answers:
                assert answer.status_code == 401, name
                assert answer.headers["www-authenticate"] == "Bearer"
                assert answer.json()["error"]["code"] == "invalid_api_key"
                assert answer.json()["error"]["type"] == "authentication_error"
            with pytest.raises(InvalidStatus) as refused:
                await running.served.connect(additional_headers=headers)
            response = refused.value.response
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
            assert json.loads(response.body)["error"]["code"] == "invalid_api_key"


async def test_unknown_and_wrong_cost_the_same_work_and_are_told_the_same(monkeypatch):
    """One look-up, one hash, one comparison, whether or not there is the key."""
    key = new_api_key()
    asked, compared = [], []
    monkeypatch.setattr(
        "sessiond.api.auth.is_secret", lambda secret, stored: compared.append(stored)
    )

    class Accounts:
        async def key_owner(self, key_id):
            asked.append(key_id)
            if key_id != key.id:
                return None
            return KeyOwner(user_id="u", role="user", salt=b"s", secret="stored")

    auth = KeyAuth(Accounts())
    messages = []
    for shown in (key.text, f"sk-{'f' * 16}.{key.secret}"):
        with pytest.raises(RequestError) as refused:
            await auth.caller(shown)
        messages.append((refused.value.code, refused.value.message))
    assert asked == [key.id, "f" * 16]
    assert [type(stored).__name__ for stored in compared] == ["str", "HashedSecret"]
    assert messages[0] == messages[1]


async def test_a_database_that_is_down_lets_nobody_in_and_says_why():
    class Down:
        async def key_owner(self, key_id):
            raise StoreError("down")

    with pytest.raises(RequestError) as refused:
        await KeyAuth(Down()).caller(new_api_key().text)
    assert refused.value.code == "internal_error"


async def test_a_revoked_key_closes_its_sockets_and_ends_its_turns_at_once(keyed):
    async with keyed() as running:
        root, ann, bob = [await Person.join(running, name) for name in ("root", "ann", "bob")]
        accounts = running.served.gateway.accounts
        async with ann.socket() as line, ann.socket() as other, bob.socket() as neighbour:
            session = (await neighbour.turn("I am Bob"))["response"]["conversation"]["id"]
            running.model.script([120] * 4000)
            steps, cancels = Steps(running), Cancels(running)
            await line.create("hi", max_output_tokens=4000)
            await line.hear("response.created")
            await accounts.revoke_key(root.id, ann.id, ann.key_id)
            await cancels.told.wait()
            steps.release()
            assert await line.closed() == 1008
            assert await other.closed() == 1008
            assert line.ws.close_reason == "the API key was revoked"
            async with bare(running, **ann.headers) as http:
                assert (await http.get("/v1/sessions")).status_code == 401
            with pytest.raises(InvalidStatus):
                await running.served.connect(additional_headers=ann.headers)
            again = await neighbour.turn("still here", conversation=session)
            reason = (again["response"]["incomplete_details"] or {}).get("reason")
            assert reason in {None, "max_output_tokens"}
        await running.idle()
        ann.key = (await accounts.add_key(root.id, ann.id)).key.text
        async with ann.http() as http:
            [left] = (await http.get("/v1/sessions")).json()["data"]
            told = (await http.get(f"/v1/sessions/{left['id']}")).json()
        assert [turn["status"] for turn in told["turns"]] == ["cancelled"]  # as on a disconnect


async def test_a_removed_user_loses_all_sockets_of_all_keys(keyed):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        accounts = running.served.gateway.accounts
        second = Person(running, ann.id, "", (await accounts.add_key("x", ann.id)).key.text)
        async with ann.socket() as line, second.socket() as other:
            await accounts.remove_user("x", ann.id)
            assert (await line.closed(), await other.closed()) == (1008, 1008)


async def test_a_rotated_key_gives_way_to_its_successor(keyed):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        accounts = running.served.gateway.accounts
        async with ann.socket() as line:
            issued = await accounts.rotate_key("x", ann.id, ann.key_id)
            assert await line.closed() == 1008
        async with bare(running, **ann.headers) as http:
            assert (await http.get("/v1/models")).status_code == 401
        ann.key = issued.key.text
        async with ann.http() as http:
            assert (await http.get("/v1/models")).status_code == 200


async def test_a_key_that_another_server_or_the_command_line_revokes_is_found_out(keyed):
    """Nobody tells this server: the row changes under it."""
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        elsewhere = running.served.gateway.accounts
        elsewhere._on_revoked = lambda keys: None  # noqa: SLF001 -- what no request shows
        async with ann.socket() as line:
            await elsewhere.revoke_key("x", ann.id, ann.key_id)
            assert await line.closed() == 1008


@pytest.mark.parametrize("stream", [False, True])
async def test_turns_over_http_end_with_their_key(keyed, stream):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        running.model.script([120] * 4000)
        steps, cancels = Steps(running), Cancels(running)
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 4000, "stream": stream}
        async with ann.http() as http:
            asked = asyncio.create_task(http.post("/v1/responses", json=body))
            while running.model.steps == 0:  # noqa: ASYNC110 -- the engine's thread counts
                await asyncio.sleep(0.001)
            await running.served.gateway.accounts.revoke_key("x", ann.id, ann.key_id)
            await cancels.told.wait()
            steps.release()
            answer = await asyncio.wait_for(asked, 60)
        assert answer.status_code == 200  # it had begun; this is how it ended
        assert ("response.incomplete" in answer.text) == stream
        assert '"cancelled"' in answer.text
        await running.idle()
        assert running.model.steps <= 2


async def test_the_keys_of_turns_are_known_while_they_run(keyed):
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        service = running.served.service
        running.model.gate = threading.Event()
        async with ann.socket() as line:
            await line.create("hi", max_output_tokens=100)
            await line.hear("response.created")
            assert service.followers.keys_at_work() == {ann.key_id}
            running.model.gate.set()
            await line.hear("response.completed", "response.incomplete")
        assert service.followers.keys_at_work() == frozenset()


async def test_a_body_that_comes_after_its_key_was_revoked_does_nothing(keyed):
    """Else who stole an admin's key could keep a request open, and make a user afterwards."""
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        body = json.dumps({"name": "mallory", "role": "admin"}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", running.served.port)
        head = (
            "POST /admin/users HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {root.key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        watch = running.served.gateway.key_watch
        writer.write(head.encode())
        while not watch._uses:  # noqa: ASYNC110, SLF001 -- the server's own task lets the request in
            await asyncio.sleep(0.001)
        await running.served.gateway.accounts.revoke_key("x", root.id, root.key_id)
        writer.write(body)
        assert b" 401 " in await reader.readline()
        writer.close()
        users, _ = await running.store.accounts.list_users(limit=9, after=None)
        assert [user.name for user in users] == ["root"]


async def test_no_key_is_in_any_log(keyed, caplog):
    """What libraries log at their most talkative, through the formatter of `sessiond serve`."""
    from sessiond.cli.serve import KeylessFormatter

    caplog.set_level(logging.DEBUG)
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        offered = [f"openai-insecure-api-key.{ann.key}", "responses"]
        async with running.served.connect(subprotocols=offered):
            pass
        for value in wrong_keys(ann).values():
            async with bare(running, **({"Authorization": value} if value else {})) as http:
                await http.get("/v1/models")
        logging.getLogger("sessiond").warning("headers: %s", ann.headers)
    formatter = KeylessFormatter("%(message)s")
    lines = [formatter.format(record) for record in caplog.records]
    secret = ann.key.partition(".")[2]
    assert any(f"sk-{ann.key_id}.[removed]" in line for line in lines)
    assert not [line for line in lines if secret[:-1] in line]


async def test_a_fault_of_the_watch_does_not_end_it():
    asked = asyncio.Queue()
    answers = iter([StoreError("down"), RuntimeError("a bug"), frozenset({"k"})])

    async def find_unusable(keys):
        asked.put_nowait(set(keys))
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch = KeyWatch(find_unusable, every_s=0.001)
    with watch.using("k") as revoked, watch.using("other") as other, watch.using(None) as never:
        watch.start()
        await asyncio.wait_for(revoked.wait(), 60)
        await watch.stop()
        assert not other.is_set()
        assert not never.is_set()
    assert asked.get_nowait() == {"k", "other"}


async def test_a_watch_asks_nothing_while_no_key_is_in_use():
    looked = asyncio.Event()

    async def find_unusable(keys):
        raise AssertionError

    def at_work():
        looked.set()
        return frozenset()

    watch = KeyWatch(find_unusable, at_work=at_work, every_s=0.001)
    watch.start()
    await asyncio.wait_for(looked.wait(), 60)
    await watch.stop()


async def test_t50_streams_hold_no_connection_so_that_keys_are_checked_beside_them(keyed):
    """T50: with a pool of 4 connections, 16 streams would shut the door for everyone."""
    async with keyed() as running:
        ann = await Person.join(running, "ann")
        running.model.gate = threading.Event()
        async with ann.http() as http:
            asked = [
                asyncio.create_task(
                    http.post(
                        "/v1/responses",
                        json={"model": MODEL, "input": f"I am {number}", "max_output_tokens": 9},
                    )
                )
                for number in range(16)
            ]
            service = running.served.service
            while len(service.runner.begun_ids()) < 16:  # noqa: ASYNC110 -- other tasks bind them
                await asyncio.sleep(0.001)
            async with asyncio.timeout(60):
                assert (await http.get("/v1/sessions")).status_code == 200
                async with ann.socket():
                    pass
            running.model.gate.set()
            done = await asyncio.gather(*asked)
        assert {answer.status_code for answer in done} == {200}
