"""EngineClient over a thread of this process: for tests and library use."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence

from engine.errors import EngineUnavailableError
from engine.ipc.client import ContextCommand
from engine.ipc.command_reader import LoopFactory, OutputBuffer, drive
from engine.ipc.framing import Ask, EngineInput, EngineOutput
from engine.ipc.in_flight import InFlightTable
from engine.ipc.messages import CancelTurn, EngineInfo, SubmitTurn
from engine.ipc.queries import Query, QueryResult
from engine.ipc.turn_stream import TurnStream

log = logging.getLogger(__name__)

# Batches (steps) that may wait for the asyncio thread; beyond that the engine's thread waits.
MAX_WAITING_BATCHES = 64


class InProcessEngine:
    """Runs the loop that `loop_factory(emit)` builds in its own thread.

    An error in that thread ends every running turn with `TurnFailed(internal_error)` and stops the
    engine: `failure` keeps the error, `epoch` rises, nothing is restarted.
    """

    def __init__(self, loop_factory: LoopFactory) -> None:
        self._loop_factory = loop_factory
        self._in_flight = InFlightTable()
        self._epoch = 1
        self._available = asyncio.Event()
        self._info: EngineInfo | None = None
        self._transport: _ThreadTransport | None = None
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    @property
    def info(self) -> EngineInfo:
        """Description of the engine. See `EngineClient`."""
        if self._info is None:
            raise EngineUnavailableError("the engine has not started")
        return self._info

    @property
    def epoch(self) -> int:
        """1, or 2 once the engine has failed."""
        return self._epoch

    @property
    def available(self) -> bool:
        """Whether commands are accepted now."""
        return self._available.is_set()

    @property
    def restarts(self) -> int:
        """Always 0: a thread is not restarted."""
        return 0

    @property
    def hangs(self) -> int:
        """Always 0: a thread can't be killed."""
        return 0

    async def start(self) -> None:
        """Build the loop in its thread and wait for it.

        Raises:
            Exception: whatever the loop factory raised.
        """
        loop = asyncio.get_running_loop()
        self._transport = _ThreadTransport(self._in_flight.deliver, loop)
        started: asyncio.Future[EngineInfo] = loop.create_future()
        # A daemon: a caller that does not stop it must still be able to exit.
        self._thread = threading.Thread(
            target=self._run, args=(self._transport, started), name="engine", daemon=True
        )
        self._thread.start()
        self._info = await started
        self._available.set()

    async def ready(self) -> None:
        """Wait until commands are accepted."""
        await self._available.wait()

    async def stop(self) -> None:
        """Finish the current step, then end the thread; running turns end in `TurnFailed`."""
        self._available.clear()
        if self._transport is not None and self._thread is not None:
            self._transport.put(None)
            await asyncio.to_thread(self._thread.join)
        self._in_flight.lose("engine_restarted", "the engine was stopped")

    def send(self, command: ContextCommand) -> None:
        """Change a context. See `EngineClient`."""
        self._put(command)

    def submit(self, command: SubmitTurn) -> TurnStream:
        """Start a turn. See `EngineClient`."""
        self._need_available()
        stream = self._in_flight.open_turn(command.turn)
        self._put(command)
        return stream

    def cancel(self, command: CancelTurn) -> None:
        """Cancel a turn. See `EngineClient`."""
        if self.available and self._in_flight.runs(command.turn):
            self._put(command)

    async def ask(self, query: Query) -> QueryResult:
        """Query the engine's state. See `EngineClient`."""
        self._need_available()
        number, answer = self._in_flight.open_query()
        self._put(Ask(number=number, query=query))
        return await answer

    def _need_available(self) -> "_ThreadTransport":
        if not self.available or self._transport is None:
            raise EngineUnavailableError("the engine is not running")
        return self._transport

    def _put(self, item: EngineInput) -> None:
        self._need_available().put(item)

    # --- the engine's thread ---------------------------------------------------------------

    def _run(self, transport: "_ThreadTransport", started: asyncio.Future[EngineInfo]) -> None:
        try:
            output_buffer = OutputBuffer()
            engine_loop, info = self._loop_factory(output_buffer.put)
            transport.call(_set_result, started, info)
            drive(engine_loop, output_buffer, transport)
        except BaseException as error:  # a thread's errors go to its owner, whatever their type
            transport.call(self._lost, started, error)

    def _lost(self, started: asyncio.Future[EngineInfo], error: BaseException) -> None:
        """Asyncio thread: the engine's thread has ended with an error."""
        if not started.done():
            started.set_exception(error)
            return
        log.error("the engine's thread failed", exc_info=error)
        self.failure = error
        self._available.clear()
        self._epoch += 1
        self._in_flight.lose("internal_error", f"the engine failed: {error}")


def _set_result(future: asyncio.Future[EngineInfo], info: EngineInfo) -> None:
    if not future.done():
        future.set_result(info)


class _ThreadTransport:
    """Input by a queue, output by calls on the asyncio loop: one wake-up per step, not event."""

    def __init__(
        self, deliver: Callable[[list[EngineOutput]], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._deliver = deliver
        self._loop = loop
        self._inbox: queue.SimpleQueue[EngineInput | None] = queue.SimpleQueue()
        self._room = threading.BoundedSemaphore(MAX_WAITING_BATCHES)

    def put(self, item: EngineInput | None) -> None:
        """Asyncio thread: add input; None closes the transport."""
        self._inbox.put(item)

    def receive(self, *, wait_s: float | None) -> Sequence[EngineInput] | None:
        """See `engine.ipc.command_reader.Transport`."""
        taken: list[EngineInput] = []
        try:
            while True:
                item = self._inbox.get(block=wait_s != 0 and not taken, timeout=wait_s)
                if item is None and taken:
                    self._inbox.put(None)  # received next: earlier input comes first
                    return taken
                if item is None:
                    return None
                taken.append(item)
        except queue.Empty:
            return taken

    def send(self, outputs: list[EngineOutput]) -> None:
        """See `engine.ipc.command_reader.Transport`."""
        self._room.acquire()
        self.call(self._arrive, outputs)

    def call(self, function: Callable[..., None], *arguments: object) -> None:
        """Engine thread: call a function in the asyncio thread, unless its loop has ended."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _arrive(self, outputs: list[EngineOutput]) -> None:
        self._room.release()
        self._deliver(outputs)
