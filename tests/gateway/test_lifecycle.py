"""What becomes of sessions and turns, over the wire."""

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
