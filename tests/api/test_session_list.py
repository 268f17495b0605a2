"""`GET /v1/sessions` on the wire: what may be asked for, and by whom."""

import pytest

from tests.api.test_policies import Keys, http_of


@pytest.fixture
def two_users(stack):
    return lambda **options: stack(auth=Keys(), **options)


async def ids(http, query=""):
    answer = await http.get(f"/v1/sessions{query}")
    assert answer.status_code == 200, answer.text
    return [session["id"] for session in answer.json()["data"]]


async def test_states_and_users_are_chosen_by_the_query(two_users):
    async with two_users() as running, http_of(running) as ann, http_of(running, "bob") as bob:
        anns = (await ann.post("/v1/conversations", json={})).json()["id"]
        bobs = (await bob.post("/v1/conversations", json={})).json()["id"]
        assert await ids(bob) == await ids(bob, "?user=bob") == [bobs]
        assert await ids(ann, "?user=bob") == [bobs]
        assert await ids(ann, "?user=*&limit=1") == [bobs]
        assert await ids(ann, f"?user=*&limit=1&after={bobs}") == [anns]
        assert await ids(ann, "?user=*&state=new") == [bobs, anns]
        assert await ids(ann, "?user=*&state=idle") == []
        await bob.delete(f"/v1/sessions/{bobs}")
        assert await ids(bob) == []
        assert await ids(bob, "?state=closed") == [bobs]


async def test_what_can_not_be_asked_for_is_said(two_users):
    async with two_users() as running, http_of(running, "bob") as bob:
        answer = await bob.get("/v1/sessions?state=asleep")
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", "state")
        assert "parked" in error["message"]
        for user in ("ann", "*", "nobody"):
            answer = await bob.get("/v1/sessions", params={"user": user})
            assert answer.status_code == 403
            assert answer.json()["error"]["code"] == "permission_denied"
