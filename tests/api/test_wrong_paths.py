"""Clients with a wrong base URL learn the right path."""

import json

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.api.scripted import ScriptedService, reply
from tests.api.tenants import Person
from tests.harness.serving import gateway_of, serving


def serving_replies():
    return serving(gateway_of(ScriptedService(lambda _: reply("x"))))


async def refused_socket(served, path, **options):
    """Status and error of the denial response."""
    url = f"ws://127.0.0.1:{served.port}{path}"
    with pytest.raises(InvalidStatus) as refused:
        await connect(url, proxy=None, **options)
    response = refused.value.response
    assert response.headers["content-type"] == "application/json"
    return response.status_code, json.loads(response.body)["error"]


@pytest.mark.parametrize(
    "path",
    ["/v1/realtime?model=x", "/v1", "/v1/responses/", "/", "/responses", "/console", "/console/x",
     "/health/live", "/v1/responses/resp_1", "/v1/models/a/b", "/nowhere"],
)  # fmt: skip
async def test_n03_a_socket_to_another_path_gets_404_that_names_the_right_one(path):
    async with serving_replies() as served:
        status, error = await refused_socket(served, path)
    assert (status, error["code"]) == (404, "not_found")
    shown = path.partition("?")[0]
    assert error["message"] == f"the path of a socket must be /v1/responses (got {shown})"


async def test_n03_a_socket_to_another_path_needs_host_origin_and_key_first(stack):
    async with stack(keys=True) as running:
        ann = await Person.join(running, "ann")
        served = running.served
        assert (await refused_socket(served, "/v1/realtime"))[0] == 401
        assert (await refused_socket(served, "/v1/realtime", origin="http://evil.example"))[
            0
        ] == 403
        key = {"Authorization": f"Bearer {ann.key}"}
        assert (await refused_socket(served, "/v1/realtime", additional_headers=key))[0] == 404
        async with httpx.AsyncClient(base_url=served.http_url, trust_env=False) as http:
            answer = await http.get("/v1/realtime", headers=key)
            assert answer.status_code == 404
