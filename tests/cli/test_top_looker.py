"""Looks of `sessiond top` at servers that answer, refuse, or say nothing."""

import threading

import pytest

from sessiond.cli.server_api import ServerError
from sessiond.cli.top.poller import Poller
from sessiond.cli.top.state import Order


class Server:
    """Says what it is asked for, once it may."""

    def __init__(self):
        self.may_answer = threading.Event()
        self.fault = None

    def metrics(self):
        assert self.may_answer.wait(60)
        if self.fault:
            raise self.fault
        return ""

    def capacity(self):
        return {"total_blocks": 1}

    def latest_sessions(self, count):
        return [{"id": "conv_a"}][:count]

    def session(self, session_id):
        return {"id": session_id}


@pytest.fixture
def server():
    return Server()


def ended(poller):
    """What a look came to."""
    poller._thread.join(60)  # noqa: SLF001 -- a look has no other end
    return poller.collect()


def test_nobody_waits_for_a_server_that_says_nothing(server):
    poller = Poller(server, 5)
    assert poller.start(chosen="conv_a")
    assert poller.collect() is None
    assert poller.waiting_s > 0
    assert not poller.start()  # one look at a time
    server.may_answer.set()
    found = ended(poller)
    assert (found.detail, found.sample.sessions, found.refusal) == (
        {"id": "conv_a"}, [{"id": "conv_a"}], "",
    )  # fmt: skip
    assert poller.collect() is None
    assert poller.waiting_s == 0


def test_a_fault_is_what_a_look_came_to(server):
    server.may_answer.set()
    server.fault = ServerError("no server answers")
    poller = Poller(server, 5)
    poller.start()
    assert str(ended(poller)) == "no server answers"


@pytest.mark.parametrize("action", ["reset", "park", "close"])
def test_an_order_is_carried_out_before_the_look(server, monkeypatch, action):
    asked = []

    def refuse(_, session_id):
        asked.append(session_id)
        raise ServerError("the server answered 409: busy")

    monkeypatch.setitem(Poller.poll.__globals__["_ORDER"], action, refuse)
    server.may_answer.set()
    poller = Poller(server, 5)
    poller.start(order=Order(action, "conv_a"))
    assert ended(poller).refusal == "the server answered 409: busy"
    assert asked == ["conv_a"]
