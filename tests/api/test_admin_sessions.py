"""Admins at other users' sessions: inspected and steered by id, on record, and nothing else."""

import pytest

from sessiond.api.session_access import LOOK_EVERY_S, SessionReach
from sessiond.domain import Caller
from tests.api.tenants import Person, cached_tokens
from tests.api.test_foreign_ids import BODIES, paths, things_of
from tests.harness.stack import MODEL

LONG = "a rather long beginning that fills several blocks of the pool, and then some more of it. "
REACHED = {
    ("GET", "/v1/sessions/{session_id}"),
    ("DELETE", "/v1/sessions/{session_id}"),
    ("POST", "/v1/sessions/{session_id}/reset"),
    ("POST", "/v1/sessions/{session_id}/park"),
    ("PUT", "/v1/sessions/{session_id}/policy"),
    ("DELETE", "/v1/sessions/{session_id}/policy"),
}


@pytest.fixture
async def running(stack):
    async with stack(keys=True, keys_every_s=3600) as running:
        yield running


@pytest.fixture
async def people(running):
    root = await Person.join(running, "root", "admin")
    ann, eve = await Person.join(running, "ann"), await Person.join(running, "eve")
    return root, ann, eve


async def acts(http):
    """What was done to sessions, the oldest first: who, what, to whom, how."""
    rows = (await http.get("/admin/audit?limit=100")).json()["data"]
    return [
        (row["actor"], row["action"], row["subject"], row["detail"])
        for row in reversed(rows)
        if row["action"].startswith("user.session.")
    ]


async def test_an_admin_inspects_and_steers_them_and_each_act_is_on_record(people):
    root, ann, _ = people
    async with root.http() as http, ann.http() as hers, ann.socket() as line:
        first = (await line.turn(LONG))["response"]
        session = first["conversation"]["id"]
        await line.turn("and more", conversation=session)
        path = f"/v1/sessions/{session}"
        before = (await hers.get(f"{path}?include=page_table")).json()
        view = (await http.get(f"{path}?include=page_table")).json()
        after = (await hers.get(f"{path}?include=page_table")).json()
        assert view in (before, after)  # idle prefill may come once in between
        assert (view["user"], view["page_table"] != []) == (ann.id, True)
        policy = (await http.put(f"{path}/policy", json={"type": "last_turns", "turns": 1})).json()
        assert policy["policy"] == (await hers.get(path)).json()["policy"] == "last_turns"
        assert (await http.delete(f"{path}/policy")).json()["policy"] == "none"
        assert (await http.post(f"{path}/park")).json()["blocks"]["device"] == 0
        body = {"response_id": first["id"]}
        assert len((await http.post(f"{path}/reset", json=body)).json()["turns"]) == 2
        assert (await http.post(f"{path}/reset")).json()["turns"] == []
        assert (await http.delete(path)).json() == (
            {"id": session, "object": "session.deleted", "deleted": True}
        )
        assert (await hers.get(path)).json()["state"] == "closed"
        assert await acts(http) == [
            (root.id, "user.session.read", ann.id, {"session": session}),
            (root.id, "user.session.policy", ann.id, {"session": session, "policy": "last_turns"}),
            (root.id, "user.session.policy", ann.id, {"session": session, "policy": None}),
            (root.id, "user.session.park", ann.id, {"session": session}),
            (root.id, "user.session.reset", ann.id, {"session": session, "response": first["id"]}),
            (root.id, "user.session.reset", ann.id, {"session": session, "response": None}),
            (root.id, "user.session.close", ann.id, {"session": session}),
        ]


async def test_a_session_that_an_admin_loaded_is_its_owners_as_before(running, people):
    """Its next turns are keyed by the owner's salt: they find the owner's blocks."""
    root, ann, _ = people
    [reply] = await ann.chat(LONG)
    session = reply["conversation"]["id"]
    await running.idle()
    live = running.served.service.live
    live.remove(live.get(session))  # as after a restart: who comes next loads it
    async with root.http() as http:
        assert (await http.put(f"/v1/sessions/{session}/policy", json={"type": "none"})).is_success
    async with ann.socket() as line:
        again = (await line.turn("and more", conversation=session))["response"]
    assert cached_tokens(again) > 0
    [same] = await ann.chat(LONG)
    assert cached_tokens(same) > 0
    [roots] = await root.chat(LONG)
    assert cached_tokens(roots) == 0


async def test_own_sessions_and_refused_acts_are_not_on_record(people):
    root, ann, _ = people
    own, hers = await things_of(root), await things_of(ann)
    async with root.http() as http:
        for method, path in sorted(REACHED - {("DELETE", "/v1/sessions/{session_id}")}):
            body = BODIES.get((method, path))
            answer = await http.request(method, path.format(**vars(own)), json=body)
            assert answer.status_code == 200, path
        named = await http.post("/v1/conversations", json={"id": "notes"})
        assert named.status_code == 200
        assert (await http.get("/v1/sessions/notes")).json()["user"] == root.id
        wrong = {"response_id": "resp_none"}
        path = f"/v1/sessions/{hers.session_id}"
        assert (await http.post(f"{path}/reset", json=wrong)).status_code == 404
        assert (await http.put(f"{path}/policy", json={"type": "bad"})).status_code == 400
        assert await acts(http) == []


async def test_nothing_else_of_them_is_reached(running, people):
    root, ann, _ = people
    ids = await things_of(ann)
    named = await ann_names(ann)
    async with root.http() as http:
        for method, path in paths(running.served.server.config.app):
            if (method, path) in REACHED:
                continue
            answer = await http.request(
                method, path.format(**vars(ids)), json=BODIES.get((method, path))
            )
            assert answer.status_code == 404, (method, path)
        for name in ("conversation", "previous_response_id"):
            given = ids.session_id if name == "conversation" else ids.response_id
            body = {"model": MODEL, "input": "hi", name: given}
            assert (await http.post("/v1/responses", json=body)).status_code == 404
        assert (await http.get(f"/v1/sessions/{named}")).status_code == 404
        assert await acts(http) == []
    async with root.socket() as line:
        for frame in (
            {
                "type": "response.create",
                "model": MODEL,
                "input": "x",
                "conversation": ids.session_id,
            },
            {"type": "session.update", "session": {"id": ids.session_id, "retention": "park"}},
        ):
            await line.say(**frame)
            assert (await line.hear("error"))["type"] == "error"


async def ann_names(ann):
    """A conversation under a name of her own, which is nobody else's."""
    async with ann.http() as http:
        assert (await http.post("/v1/conversations", json={"id": "diary"})).status_code == 200
    return "diary"


async def test_for_everybody_else_there_is_no_such_session(running, people):
    _, ann, eve = people
    ids = await things_of(ann)
    async with eve.http() as http:
        for method, path in sorted(REACHED):
            body = BODIES.get((method, path))
            answer = await http.request(method, path.format(**vars(ids)), json=body)
            assert answer.status_code == 404, path
            assert answer.json()["error"]["code"] == "conversation_not_found"


async def test_what_is_not_stored_is_its_owners_alone(people):
    root, ann, _ = people
    async with ann.socket() as line, root.http() as http:
        reply = (await line.turn("hush", store=False))["response"]
        path = f"/v1/sessions/{reply['conversation']['id']}"
        async with ann.http() as hers:
            assert (await hers.get(path)).status_code == 200
        assert (await http.get(path)).status_code == 404
        assert (await http.delete(path)).status_code == 404
        assert await acts(http) == []


async def test_a_removed_users_session_can_be_closed(people):
    root, ann, _ = people
    ids = await things_of(ann)
    async with root.http() as http:
        assert (await http.delete(f"/admin/users/{ann.id}")).is_success
        assert (await http.delete(f"/v1/sessions/{ids.session_id}")).json()["deleted"]
        assert (await http.get(f"/v1/sessions/{ids.session_id}")).json()["state"] == "closed"


async def test_looks_are_on_record_once_an_hour(running, people):
    root, ann, _ = people
    ids = await things_of(ann)
    accounts, now = running.served.gateway.accounts, [1000.0]
    reach = SessionReach(accounts, clock=lambda: now[0])
    admin = Caller(user_id=root.id, is_admin=True, salt=b"root")
    reached = await reach.find(admin, ids.session_id)
    assert (reached.owner.user_id, reached.owner.is_admin) == (ann.id, False)
    async with root.http() as http:
        for at, written in ((0, 1), (LOOK_EVERY_S - 1, 1), (LOOK_EVERY_S, 2)):
            now[0] = 1000.0 + at
            await reach.write_down_look(reached)
            assert len(await acts(http)) == written
