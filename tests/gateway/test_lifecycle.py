"""What becomes of sessions and turns, over the wire."""

import asyncio
import threading

import httpx

from tests.gateway.schemas import validate


def http_of(running):
    return httpx.AsyncClient(base_url=running.served.http_url, trust_env=False, timeout=10)


async def said(http, text, **fields):
    answer = await http.post("/v1/responses", json={"input": text, **fields})
    assert answer.status_code == 200, answer.text
    validate(answer.json(), "Response")
    return answer.json()


async def test_a_session_is_forked_and_rewound_over_http(stack):
    async with stack() as running, http_of(running) as http:
        first = await said(http, "hi")
        session = first["conversation"]["id"]
        await said(http, "on", conversation=session)
        fork = await http.post(f"/v1/sessions/{session}/fork", json={"response_id": first["id"]})
        assert fork.status_code == 200
        assert fork.json()["id"] != session
        assert {turn["response_id"] for turn in fork.json()["turns"]} == {first["id"]}
        whole = (await http.post(f"/v1/sessions/{session}/fork")).json()
        assert len(whole["turns"]) > len(fork.json()["turns"])
        rewound = await http.post(
            f"/v1/sessions/{session}/reset", json={"response_id": first["id"]}
        )
        assert rewound.json()["turns"] == fork.json()["turns"]
        later = await said(http, "again", previous_response_id=first["id"])
        assert later["conversation"]["id"] == session
        wrong = await http.post(f"/v1/sessions/{session}/fork", json={"response_id": "resp_x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "response_id")
        wrong = await http.post(f"/v1/sessions/{session}/reset", json={"response": "resp_x"})
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "response")
        await running.idle()


async def test_a_turn_in_the_background_is_answered_at_once_and_followed_by_its_id(stack):
    async with stack() as running, http_of(running) as http:
        running.model.gate = threading.Event()
        begun = await said(http, "hi", background=True)
        assert (begun["status"], begun["background"]) == ("in_progress", True)
        seen = (await http.get(f"/v1/responses/{begun['id']}")).json()
        assert (seen["status"], seen["background"]) == ("in_progress", True)
        running.model.gate.set()
        while seen["status"] == "in_progress":
            seen = (await http.get(f"/v1/responses/{begun['id']}")).json()
        assert seen["status"] == "completed"
        validate(seen, "Response")
        await running.idle()


async def test_a_turn_in_the_background_is_cancelled_by_its_id(stack):
    async with stack() as running, http_of(running) as http:
        running.model.script([120] * 4000)
        running.model.gate = threading.Event()
        begun = await said(http, "hi", background=True, max_output_tokens=2000)
        cancel = asyncio.create_task(http.post(f"/v1/responses/{begun['id']}/cancel"))
        await asyncio.sleep(0)
        running.model.gate.set()
        seen = (await cancel).json()
        assert (seen["status"], seen["incomplete_details"]) == (
            "incomplete",
            {"reason": "cancelled"},
        )
        await running.idle()


async def test_background_and_not_stored_exclude_each_other(stack):
    async with stack() as running, http_of(running) as http:
        wrong = await http.post(
            "/v1/responses", json={"input": "hi", "background": True, "store": False}
        )
        assert wrong.status_code == 400
        message = wrong.json()["error"]["message"]
        assert "background=true" in message
        assert "store=false" in message


async def test_a_response_that_is_not_stored_is_not_found_afterwards(stack):
    async with stack() as running, http_of(running) as http:
        response = await said(http, "hi", store=False)
        assert (response["status"], response["store"]) == ("completed", False)
        for path in (f"responses/{response['id']}", f"sessions/{response['conversation']['id']}"):
            assert (await http.get(f"/v1/{path}")).status_code == 404
        await running.idle()
