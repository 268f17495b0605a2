"""The driver sleeps when its loop has nothing to do, and wakes it when it said so."""

import asyncio
import fcntl
import resource
import socket

import pytest

from engine.ipc.command_reader import OutputBuffer, drive
from engine.ipc.framing import encode
from engine.ipc.in_process import InProcessEngine
from engine.ipc.messages import TurnEvent
from engine.worker_process import SocketTransport
from tests.harness.loop import Engine
from tests.ipc.loops import INFO, EchoLoop
from tests.ipc.test_in_process import submit


@pytest.fixture
def many_descriptors():
    """Lets this process open some more than 1,024 files, the usual limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1100), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class RestlessLoop(EchoLoop):
    """Has something to do by itself, `rests` times, a moment after each step without work."""

    def __init__(self, emit, rests: int, done=lambda: None) -> None:
        super().__init__(emit)
        self.rests = rests
        self.done = done

    def close(self) -> None:
        self.closed = True

    @property
    def rest_s(self) -> float | None:
        return 0.001 if self.rests else None

    def step(self, flush) -> bool:
        worked = super().step(flush)
        if self.steps > 1 and not worked and self.rests:
            self.rests -= 1
            if not self.rests:
                self.done()
        return worked


class ScriptedDoor:
    def __init__(self, script) -> None:
        self.script = list(script)
        self.waits: list[float | None] = []

    def receive(self, *, wait_s):
        self.waits.append(wait_s)
        return self.script.pop(0) if self.script else None

    def send(self, outputs) -> None:
        pass


def test_the_driver_waits_as_long_as_the_loop_rests() -> None:
    output_buffer = OutputBuffer()
    transport = ScriptedDoor([[submit("a", words=2)], [], [], [], []])
    drive(RestlessLoop(output_buffer.put, rests=2), output_buffer, transport)
    # Not before the turn has ended; then as the loop says; then until there is input.
    assert transport.waits == [0, 0, 0, 0.001, None, None]


def test_a_loop_with_an_expected_turn_rests_and_then_sleeps() -> None:
    engine = Engine()
    output_buffer = OutputBuffer()
    engine.open("a")
    engine.turn("a", [1] * 16, draft_ids=[257])
    engine.submit("a", [257, 2], draft_ids=[257])
    waits: list[float | None] = []

    class Transport:
        def receive(self, *, wait_s):
            waits.append(wait_s)
            engine.clock.advance(wait_s or 0)
            return None if wait_s is None else []

        def send(self, outputs: list[TurnEvent]) -> None:
            pass

    drive(engine.loop, output_buffer, Transport())
    rests = [wait_s for wait_s in waits if wait_s]
    assert len(rests) == 1
    assert waits[-1] is None
    engine.check()


def test_the_sockets_door_waits_no_longer_than_it_is_told() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        transport = SocketTransport(theirs)
        assert transport.receive(wait_s=0) == []
        assert transport.receive(wait_s=0.001) == []
        ours.sendall(encode(submit("a")))
        for wait_s in (0.001, None):
            assert transport.receive(wait_s=wait_s) == [submit("a")]
            ours.sendall(encode(submit("a")))
        assert transport.receive(wait_s=60) == [submit("a")]
        ours.close()
        assert transport.receive(wait_s=60) is None


@pytest.mark.parametrize("unread", [False, True])
def test_a_parent_that_goes_is_told_after_its_last_words(unread: bool) -> None:
    """Be it with output that it has not read, or before it was sent any."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        output_buffer = OutputBuffer()
        transport, loop = SocketTransport(theirs), EchoLoop(output_buffer.put)
        if unread:
            transport.send([])
        ours.sendall(encode(submit("a", words=3)))
        ours.close()
        drive(loop, output_buffer, transport)
        assert loop.commands == [submit("a", words=3)]
        assert loop.closed


def test_the_sockets_door_takes_a_descriptor_above_1023(many_descriptors: None) -> None:
    """A parent with many sockets hands such a one to the child that it restarts."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 1024)
        with socket.socket(fileno=number) as high:
            transport = SocketTransport(high)
            assert transport.receive(wait_s=0.001) == []
            ours.sendall(encode(submit("a")))
            assert transport.receive(wait_s=None) == [submit("a")]


async def test_a_thread_wakes_by_itself_when_its_loop_said_so() -> None:
    asyncio_loop, done = asyncio.get_running_loop(), asyncio.Event()

    def build(emit):
        loop = RestlessLoop(emit, rests=3, done=lambda: asyncio_loop.call_soon_threadsafe(done.set))
        return loop, INFO

    engine = InProcessEngine(build)
    await engine.start()
    await done.wait()
    await engine.stop()
