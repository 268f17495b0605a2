"""Connections that have sent nothing yet are bounded, and the oldest of them go first."""

import asyncio
import errno
import logging

import pytest

from sessiond.api.server import QuietAccept, SilentConnections


class Transport:
    def __init__(self) -> None:
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def opened(silent: SilentConnections, count: int, address: str = "a", file: int = 10):
    transports = [Transport() for _ in range(count)]
    for transport in transports:
        silent.add(transport, address, file)
    return transports


def test_of_one_address_the_oldest_goes() -> None:
    silent = SilentConnections(max_per_address=2, max_file=100, clock=lambda: 0.0)
    others = opened(silent, 2, "b")
    ours = opened(silent, 4)
    assert [one.aborted for one in ours] == [True, True, False, False]
    assert not any(one.aborted for one in others)
    assert len(silent) == 4


def test_where_descriptors_are_few_the_oldest_of_all_goes() -> None:
    silent = SilentConnections(max_file=20, clock=lambda: 0.0)
    old = opened(silent, 12, "b", file=20)
    [new] = opened(silent, 1, "a", file=21)
    assert [one.aborted for one in old] == [True] * 8 + [False] * 4
    assert not new.aborted


def test_one_alone_beyond_the_last_descriptor_goes_itself() -> None:
    silent = SilentConnections(max_file=20, clock=lambda: 0.0)
    [only] = opened(silent, 1, file=21)
    assert only.aborted
    assert len(silent) == 0


def test_a_connection_that_has_sent_a_request_stays() -> None:
    silent = SilentConnections(max_per_address=1, max_file=20, clock=lambda: 0.0)
    [served] = opened(silent, 1)
    silent.remove(served)
    silent.remove(served)
    opened(silent, 5, file=25)
    assert not served.aborted


def test_there_is_one_log_line_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    silent = SilentConnections(max_file=20, clock=lambda: now_s)
    for _ in range(3):
        for _ in range(50):
            opened(silent, 2, file=21)
        now_s += 29.0
    now_s = 61.0
    opened(silent, 1, file=21)
    assert [record.args[0] for record in caplog.records] == [1, 300]


def test_a_pause_of_accepting_is_logged_once_a_minute_without_a_trace(caplog) -> None:
    caplog.set_level(logging.ERROR)
    now_s = 0.0
    handler = QuietAccept(clock=lambda: now_s)
    loop = asyncio.new_event_loop()
    try:
        for _ in range(70):
            error = OSError(errno.EMFILE, "Too many open files")
            handler(loop, {"message": "socket.accept() out of system resource", "exception": error})
            now_s += 1.0
        assert [record.getMessage() for record in caplog.records] == [
            "new connections wait: Too many open files; open sockets go on"
        ] * 2
        handler(loop, {"message": "a task failed", "exception": RuntimeError("no")})
        assert caplog.records[-1].name == "asyncio"
    finally:
        loop.close()
