"""`/admin`: only for admins, every change written down, no secret shown twice."""

import asyncio

import pytest
from websockets.exceptions import InvalidStatus

from tests.api.tenants import Person
from tests.docs.blocks import table_column


@pytest.fixture
def keyed(stack):
    return lambda **options: stack(keys=True, **options)


async def audits(http):
    rows = (await http.get("/admin/audit")).json()["data"]
    return [(row["actor"], row["action"], row["subject"], row["detail"]) for row in rows]


async def test_an_admin_adds_users_who_can_come_in_with_their_keys(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        async with root.http() as http:
            made = await http.post("/admin/users", json={"name": "ada"})
            assert made.status_code == 201
            user = made.json()
            assert (user["name"], user["role"], user["revoked_at"]) == ("ada", "user", None)
            issued = await http.post(f"/admin/users/{user['id']}/keys")
            assert issued.status_code == 201
            assert issued.headers["cache-control"] == "no-store"
            key = issued.json()
            assert key["key"].startswith(f"sk-{key['id']}.")
            [listed] = (await http.get(f"/admin/users/{user['id']}/keys")).json()["data"]
            assert set(listed) == {"object", "id", "user_id", "created_at", "revoked_at"}
            users = (await http.get("/admin/users")).json()["data"]
            assert [one["name"] for one in users] == ["root", "ada"]
            shown = (await http.get(f"/admin/users/{user['id']}")).json()
            assert shown.pop("usage")["tokens_total"] == 0
            assert shown == user
        ada = Person(running, user["id"], key["id"], key["key"])
        async with ada.socket() as line:
            response = (await line.turn("hi"))["response"]
        async with ada.http() as http:
            session = response["conversation"]["id"]
            assert (await http.get(f"/v1/sessions/{session}")).json()["user"] == user["id"]


async def test_keys_are_rotated_and_revoked_with_their_sockets(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        keys = f"/admin/users/{ada.id}/keys"
        async with root.http() as http, ada.socket() as line:
            rotated = await http.post(f"{keys}/{ada.key_id}/rotate")
            assert rotated.status_code == 201
            assert await line.closed() == 1008
            ada.key = rotated.json()["key"]
            async with ada.socket() as again:
                revoked = await http.delete(f"{keys}/{rotated.json()['id']}")
                assert revoked.json()["deleted"]
                assert await again.closed() == 1008
            for answer in (
                await http.delete(f"{keys}/{ada.key_id}"),
                await http.post(f"{keys}/{ada.key_id}/rotate"),
                await http.delete(f"/admin/users/{root.id}/keys/{ada.key_id}"),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            listed = (await http.get(keys)).json()["data"]
            assert [one["revoked_at"] is None for one in listed] == [False, False]


async def test_a_removed_user_is_out_and_its_name_free(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        async with root.http() as http, ada.socket() as line:
            assert (await http.delete(f"/admin/users/{ada.id}")).json()["deleted"]
            assert await line.closed() == 1008
            assert (await http.delete(f"/admin/users/{ada.id}")).status_code == 404
            assert (await http.post(f"/admin/users/{ada.id}/keys")).status_code == 404
            again = await http.post("/admin/users", json={"name": "ada"})
            assert again.status_code == 201
            assert again.json()["id"] != ada.id


async def test_a_role_holds_from_the_next_request_on(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        async with root.http() as http, ada.http() as hers:
            for role, status in (("admin", 200), ("user", 403)):
                changed = await http.post(f"/admin/users/{ada.id}", json={"role": role})
                assert changed.json()["role"] == role
                assert (await hers.get("/admin/users")).status_code == status


ADMIN_ONLY = [
    ("GET", "/admin/pool"),
    ("GET", "/admin/users"),
    ("POST", "/admin/users"),
    ("GET", "/admin/users/user_x"),
    ("POST", "/admin/users/user_x"),
    ("DELETE", "/admin/users/user_x"),
    ("GET", "/admin/users/user_x/keys"),
    ("POST", "/admin/users/user_x/keys"),
    ("DELETE", "/admin/users/user_x/keys/k"),
    ("POST", "/admin/users/user_x/keys/k/rotate"),
    ("PUT", "/admin/users/user_x/policy"),
    ("DELETE", "/admin/users/user_x/policy"),
    ("GET", "/admin/users/user_x/quota"),
    ("PUT", "/admin/users/user_x/quota"),
    ("GET", "/admin/audit"),
    ("GET", "/admin/memory"),
    ("GET", "/admin/drain"),
    ("POST", "/admin/drain"),
    ("GET", "/admin/what-comes-later"),
]


def admin_routes(running):
    """(method, path) of each, with the ids of `ADMIN_ONLY`."""
    return {
        (method, route.path.format(user_id="user_x", key_id="k"))
        for route in running.served.server.config.app.routes
        if route.path.startswith("/admin")
        for method in route.methods - {"HEAD"}
    }


def documented():
    """Rows of the page's table, likewise."""
    for row in table_column("docs/admin.md", "## Users"):
        yield row.replace("{id}", "user_x").replace("{key id}", "k")


async def test_nobody_else_may_do_any_of_it(keyed):
    async with keyed() as running:
        ada = await Person.join(running, "ada")
        async with ada.http() as http:
            for method, path in ADMIN_ONLY:
                answer = await http.request(method, path)
                assert answer.status_code == 403, path
                assert answer.json()["error"]["code"] == "permission_denied"
        routes = admin_routes(running)
        assert routes <= set(ADMIN_ONLY)
        assert routes == {tuple(row.split(" ")) for row in documented()}
        assert not running.served.gateway.connections.draining


async def test_quotas_are_of_users_there_are_and_written_down(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        async with root.http() as http:
            for method in ("GET", "PUT"):
                answer = await http.request(method, "/admin/users/user_x/quota", json={})
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            path = f"/admin/users/{ada.id}/quota"
            assert (await http.put(path, json={"max_sessions": 3})).status_code == 200
            assert (await http.get(path)).json()["max_sessions"] == 3
            row = (await http.get("/admin/audit")).json()["data"][0]
        assert (row["actor"], row["action"], row["subject"]) == (root.id, "user.quota", ada.id)
        assert row["detail"] == {"max_sessions": 3}


async def test_every_change_is_written_down_and_nothing_else(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        async with root.http() as http:
            before = await audits(http)
            user = (await http.post("/admin/users", json={"name": "ada", "role": "admin"})).json()
            one = f"/admin/users/{user['id']}"
            key = (await http.post(f"{one}/keys")).json()
            other = (await http.post(f"{one}/keys/{key['id']}/rotate")).json()
            await http.delete(f"{one}/keys/{other['id']}")
            await http.post(one, json={"role": "user"})
            await http.put(f"{one}/policy", json={"type": "last_turns", "turns": 2})
            await http.delete(f"{one}/policy")
            await http.delete(one)
            await http.delete(one)  # refused
            await http.post("/admin/users", json={"name": ""})  # refused
            written = (await audits(http))[: -len(before)]
            text = (await http.get("/admin/audit")).text
        subject = user["id"]
        assert list(reversed(written)) == [
            (root.id, "user.add", subject, {"name": "ada", "role": "admin"}),
            (root.id, "key.add", subject, {"key": key["id"]}),
            (root.id, "key.rotate", subject, {"key": key["id"], "new_key": other["id"]}),
            (root.id, "key.revoke", subject, {"key": other["id"]}),
            (root.id, "user.role", subject, {"role": "user"}),
            (root.id, "user.policy", subject, {"policy": "last_turns"}),
            (root.id, "user.policy", subject, {"policy": None}),
            (root.id, "user.remove", subject, {}),
        ]
        for secret in (key["key"], other["key"]):
            assert secret not in text


async def test_the_audit_log_comes_in_pages(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        for number in range(5):
            await Person.join(running, f"u{number}")
        async with root.http() as http:
            seen, after, more = [], "", True
            while more:
                page = (await http.get(f"/admin/audit?limit=5{after}")).json()
                seen += [row["id"] for row in page["data"]]
                after, more = f"&after={page['last_id']}", page["has_more"]
            assert seen == list(range(12, 0, -1))
            for bad in ("x", "-1", "9" * 30):
                answer = await http.get(f"/admin/audit?after={bad}")
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "after")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "a b"}, "name"),
        ({"name": "local"}, "name"),
        ({"name": "user_1"}, "name"),
        ({"name": "x" * 65}, "name"),
        ({"name": "x" * 1000}, "name"),
        ({"name": 7}, "name"),
        ({"name": "root"}, "name"),  # taken
        ({"name": "ok", "role": "king"}, "role"),
        ({"name": "ok", "salt": "x"}, "salt"),
    ],
)
async def test_bad_users_are_refused_by_field(keyed, body, param):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        async with root.http() as http:
            answer = await http.post("/admin/users", json=body)
            assert answer.status_code == 400
            assert answer.json()["error"]["param"] == param
            assert len((await http.get("/admin/users")).json()["data"]) == 1


async def test_a_drain_is_begun_over_http_and_ends_turns_in_order(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        ada = await Person.join(running, "ada")
        async with root.http() as http, ada.socket() as line:
            assert (await http.get("/admin/drain")).json()["draining"] is False
            await line.create("hi", max_output_tokens=16)
            await line.hear("response.created")
            begun = await http.post("/admin/drain")
            assert (begun.status_code, begun.json()["draining"]) == (202, True)
            assert (await http.post("/admin/drain")).status_code == 202
            await line.hear("response.completed", "response.incomplete")
            assert await line.closed() == 1012
            with pytest.raises(InvalidStatus) as refused:
                await running.served.connect(additional_headers=ada.headers)
            assert refused.value.response.status_code == 503
            assert (await http.get("/health/ready")).status_code == 503
            async with asyncio.timeout(60):
                while not (await http.get("/admin/drain")).json()["done"]:
                    pass
            assert (await audits(http))[0][1:] == ("drain", None, {})


async def test_a_policy_for_a_user_that_is_not_there_makes_none(keyed):
    async with keyed() as running:
        root = await Person.join(running, "root", "admin")
        async with root.http() as http:
            path = "/admin/users/user_typo/policy"
            for answer in (
                await http.put(path, json={"type": "last_turns", "turns": 1}),
                await http.delete(path),
            ):
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
            own = f"/admin/users/{root.id}/policy"
            set_ = await http.put(own, json={"type": "last_turns", "turns": 1})
            assert set_.status_code == 200
            users = (await http.get("/admin/users")).json()["data"]
            assert [one["id"] for one in users] == [root.id]
