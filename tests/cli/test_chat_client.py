import socket
from itertools import count

import pytest

from sessiond.cli.chat_client import ChatClient, TurnOptions
from sessiond.cli.chat_turn import Notice, ReplyText, TurnEnd
from sessiond.cli.server_api import ServerAddress, ServerError
from tests.cli.scripted_server import Play, ScriptedServer, reply


def client_of(server, **options):
    client = ChatClient(
        ServerAddress.parse(server.url), TurnOptions(**options), sleep=lambda seconds: None
    )
    client.connect()
    return client


def ask(client, text, cancel_wanted=lambda: False):
    parts = list(client.ask(text, cancel_wanted=cancel_wanted))
    assert isinstance(parts[-1], TurnEnd)
    assert not any(isinstance(part, TurnEnd) for part in parts[:-1])
    return "".join(part.text for part in parts if isinstance(part, ReplyText)), parts[-1]


def test_turns_continue_from_the_last_response_with_only_the_new_text():
    plays = [Play(frames=reply("one")), Play(frames=reply("two", response_id="resp_2"))]
    with ScriptedServer(plays).running() as server:
        client = client_of(server, max_output_tokens=9, temperature=0.0)
        assert ask(client, "first")[0] == "one"
        assert ask(client, "second")[0] == "two"
        client.close()
    assert server.creates == [
        {"type": "response.create", "input": "first", "max_output_tokens": 9, "temperature": 0.0},
        {
            "type": "response.create",
            "input": "second",
            "max_output_tokens": 9,
            "temperature": 0.0,
            "previous_response_id": "resp_1",
        },
    ]


def test_a_resumed_conversation_is_named_until_a_response_can_be():
    plays = [Play(frames=reply("one")), Play(frames=reply("two"))]
    with ScriptedServer(plays).running() as server:
        client = ChatClient(ServerAddress.parse(server.url), TurnOptions(), session_id="conv_old")
        ask(client, "first")
        ask(client, "second")
        client.close()
    assert [message.get("conversation") for message in server.creates] == ["conv_old", None]
    assert [message.get("previous_response_id") for message in server.creates] == [None, "resp_1"]


@pytest.mark.parametrize("code", [1000, 1011, 1012, 1013])
def test_a_close_between_turns_is_survived_and_the_tip_continued(code):
    plays = [Play(frames=reply("one"), close_code=code), Play(frames=reply("two"))]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        ask(client, "first")
        text, end = ask(client, "second")
        client.close()
    assert (text, end.outcome, server.connections) == ("two", "completed", 2)
    assert server.creates[-1]["previous_response_id"] == "resp_1"


@pytest.mark.parametrize("code", [1000, 1011, 1012, 1013])
def test_a_close_inside_a_turn_cuts_it_and_the_next_turn_stands_where_it_began(code):
    plays = [
        Play(frames=reply("one")),
        Play(frames=reply("lost", response_id="resp_lost")[:-1], close_code=code),
        Play(frames=reply("three", response_id="resp_3")),
    ]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        ask(client, "first")
        text, end = ask(client, "second")
        assert (text, end.outcome) == ("lost", "cut")
        assert str(code) in end.detail
        assert ask(client, "third")[0] == "three"
        client.close()
    assert server.creates[-1]["previous_response_id"] == "resp_1"


def test_a_turn_that_was_never_taken_is_sent_again():
    plays = [Play(close_code=1012), Play(frames=reply("one"))]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        assert ask(client, "first")[0] == "one"
        client.close()
    assert [message["input"] for message in server.creates] == ["first", "first"]


def test_a_server_that_closes_at_every_turn_is_given_up():
    plays = [Play(close_code=1011), Play(close_code=1011)]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        assert ask(client, "first")[1].outcome == "cut"
        client.close()


def test_malformed_json_cuts_the_turn_and_the_next_one_uses_a_new_connection():
    broken = [*reply("lost")[:-1], "{"]
    plays = [Play(frames=broken), Play(frames=reply("fine"))]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        assert ask(client, "first")[1].outcome == "cut"
        assert ask(client, "second")[0] == "fine"
        client.close()
    assert server.connections == 2


def test_cancel_is_sent_once_and_the_partial_reply_is_the_new_tip():
    cut = reply("and", response_id="resp_c", status="incomplete")
    plays = [Play(frames=cut[:-1], after_cancel=cut[-1:]), Play(frames=reply("next"))]
    wishes = count()
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        text, end = ask(client, "count", cancel_wanted=lambda: next(wishes) >= 2)
        assert (text, end.outcome) == ("and", "incomplete")
        ask(client, "next")
        client.close()
    cancels = [message for message in server.received if message["type"] == "response.cancel"]
    assert cancels == [{"type": "response.cancel", "response_id": "resp_c"}]
    assert server.creates[-1]["previous_response_id"] == "resp_c"


def test_a_failed_first_turn_leaves_a_session_to_go_on_with():
    failed = reply("", status="failed", error={"code": "engine_restarted", "message": "restarted"})
    plays = [Play(frames=failed), Play(frames=reply("fine"))]
    with ScriptedServer(plays).running() as server:
        client = client_of(server)
        assert ask(client, "first")[1].code == "engine_restarted"
        ask(client, "again")
        client.close()
    assert server.creates[-1]["conversation"] == "conv_1"


def test_no_server_is_an_error_that_names_the_address():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    client = ChatClient(ServerAddress.parse(url), TurnOptions())
    with pytest.raises(ServerError, match=url):
        client.connect()


def test_a_server_that_stays_away_is_waited_for_and_then_given_up():
    waits = []
    with ScriptedServer([Play(frames=reply("one"), close_code=1012)]).running() as server:
        client = ChatClient(ServerAddress.parse(server.url), TurnOptions(), sleep=waits.append)
        client.connect()
        ask(client, "first")
    parts = []
    with pytest.raises(ServerError):
        parts.extend(client.ask("second", cancel_wanted=lambda: False))
    assert waits == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(isinstance(part, Notice) for part in parts)
