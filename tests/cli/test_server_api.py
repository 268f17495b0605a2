import pytest

from sessiond.cli.server_api import ServerAddress, ServerApi, ServerError
from tests.cli.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("url", "http", "socket"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/responses"),
        ("http://localhost:1/v1/", "http://localhost:1", "ws://localhost:1/v1/responses"),
        ("ws://[::1]:8080/v1/responses", "http://[::1]:8080", "ws://[::1]:8080/v1/responses"),
        ("https://chat.example", "https://chat.example", "wss://chat.example/v1/responses"),
        ("wss://chat.example", "https://chat.example", "wss://chat.example/v1/responses"),
    ],
)
def test_an_address_is_read_in_every_usual_form(url, http, socket):
    address = ServerAddress.parse(url)
    assert (address.http, address.socket) == (http, socket)


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:8080", "ftp://host", "http://", "", "http://h:99999", "http://h:x", "http://[::1"],
)
def test_a_bad_address_is_named(url):
    with pytest.raises(ValueError, match="must be"):
        ServerAddress.parse(url)


def test_answers_of_the_server_are_read():
    answers = {("GET", "/v1/models"): (200, {"data": [{"id": "tiny"}]})}
    with ScriptedServer([], answers).running() as server:
        assert ServerApi(ServerAddress.parse(server.url)).model() == "tiny"


def test_a_refusal_carries_the_servers_message_and_status():
    refusal = {"error": {"code": "conversation_not_found", "message": "no such conversation"}}
    answers = {("GET", "/v1/sessions/conv_x"): (404, refusal)}
    with ScriptedServer([], answers).running() as server:
        api = ServerApi(ServerAddress.parse(server.url))
        with pytest.raises(ServerError, match="404: no such conversation") as caught:
            api.session("conv_x")
    assert caught.value.status == 404


def test_an_answer_that_is_no_object_is_an_error():
    with ScriptedServer([], {("GET", "/v1/models"): (200, [])}).running() as server:
        api = ServerApi(ServerAddress.parse(server.url))
        with pytest.raises(ServerError, match="must be a JSON object"):
            api.model()


EVERYBODYS, OWN = "/v1/sessions?limit=100&user=%2A", "/v1/sessions?limit=100"


def page(*ids):
    return 200, {"data": [{"id": name} for name in ids], "has_more": False}


@pytest.mark.parametrize(
    ("everybodys", "shown"),
    [
        (page("a", "b", "c"), ["a", "b"]),
        (
            (403, {"error": {"message": "only an admin may list the sessions of other users"}}),
            ["mine"],
        ),
    ],
)
def test_an_admin_sees_everybodys_sessions_and_others_their_own(everybodys, shown):
    answers = {("GET", EVERYBODYS): everybodys, ("GET", OWN): page("mine")}
    with ScriptedServer([], answers).running() as server:
        found = ServerApi(ServerAddress.parse(server.url)).latest_sessions(2)
    assert [each["id"] for each in found] == shown


def test_what_else_goes_wrong_with_the_list_is_told():
    answers = {("GET", EVERYBODYS): (500, {}), ("GET", OWN): page("mine")}
    with (
        ScriptedServer([], answers).running() as server,
        pytest.raises(ServerError, match="500"),
    ):
        ServerApi(ServerAddress.parse(server.url)).latest_sessions(2)
