"""`EngineClient` over a supervised child process. Asyncio thread only.

`Watchdog` decides when an engine that answers no ping counts as hung.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.errors import (
    ConfigError,
    EngineError,
    EngineUnavailableError,
    ModelFileError,
    TemplateError,
)
from engine.ipc.client import ContextCommand
from engine.ipc.framing import (
    Ask,
    FromWorker,
    Launch,
    OutputBatch,
    Ping,
    Pong,
    Progress,
    Ready,
    Refused,
)
from engine.ipc.in_flight import InFlightTable
from engine.ipc.messages import CancelTurn, EngineInfo, SubmitTurn
from engine.ipc.queries import Query, QueryResult
from engine.ipc.turn_stream import TurnStream
from engine.ipc.worker_child import WorkerChild

log = logging.getLogger(__name__)


_LAST_OUTPUT_S = 2.0  # a child whose socket has closed may still print the reason

STEP_TIMEOUT_S = 300.0
"""Default timeout of a step."""

LOOKS = 8
"""Polls within the timeout of a step."""

_STACKS_S = 1.0  # for a hung child to print its stacks
_SHOWN_TURNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long to wait before restarting: doubles from `first_s` to `most_s`.

    Resets once an engine has lived for `healthy_s`.
    """

    first_s: float = 0.1
    most_s: float = 5.0
    healthy_s: float = 60.0

    def delay_s(self, failures: int) -> float:
        """Pause after this many consecutive losses (1 and up)."""
        return min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 32))


class WorkerEngine:
    """Runs an engine in a child process, and replaces it whenever it is lost.

    A loss ends every running turn with `TurnFailed(engine_restarted)` at once. `on_progress`
    receives the progress of a starting engine. An engine whose step takes longer than
    `step_timeout_s` (0: no limit) counts as hung and is killed. `loop_factory` ("module:function")
    replaces the model in tests.
    """

    def __init__(  # noqa: PLR0913 -- options of its owner, each by its name
        self,
        config: EngineConfig,
        *,
        on_progress: Callable[[str], None] = lambda _text: None,
        backoff: Backoff = Backoff(),
        stop_grace_s: float = 5.0,
        step_timeout_s: float = STEP_TIMEOUT_S,
        loop_factory: str = "",
    ) -> None:
        self._launch = Launch(config=config, loop_factory=loop_factory)
        self._on_progress = on_progress
        self._backoff = backoff
        self._stop_grace_s = stop_grace_s
        self._in_flight = InFlightTable()
        self._epoch = 1
        self._restarts = 0
        self._hangs = 0
        self._watchdog = Watchdog(step_timeout_s)
        self._info: EngineInfo | None = None
        self._available = asyncio.Event()
        self._child: WorkerChild | None = None
        self._outcome: asyncio.Future[Ready | Refused | None] | None = None
        self._gone = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def info(self) -> EngineInfo:
        """Description of the engine. See `EngineClient`."""
        if self._info is None:
            raise EngineUnavailableError("the engine has not started")
        return self._info

    @property
    def epoch(self) -> int:
        """1, and one more after each loss."""
        return self._epoch

    @property
    def available(self) -> bool:
        """Whether commands are accepted now."""
        return self._available.is_set()

    @property
    def restarts(self) -> int:
        """Number of times the engine was lost and restarted."""
        return self._restarts

    @property
    def hangs(self) -> int:
        """Number of engines that hung in a step and were killed."""
        return self._hangs

    @property
    def pid(self) -> int:
        """Process id of the child.

        Raises:
            EngineUnavailableError: there is no child.
        """
        return self._need_child().pid

    async def start(self) -> None:
        """Start the child and wait until it is ready. A first failure is not retried.

        Raises:
            ConfigError: a setting can't work with this model or this machine.
            ModelFileError: the model's file is missing, damaged or of an unknown kind.
            TemplateError: the model's chat template can't be used.
            EngineUnavailableError: the child could not start for another reason, or died.
        """
        await self._launch_child()
        self._tasks.append(asyncio.create_task(self._supervise(), name="engine supervisor"))
        if self._watchdog.step_timeout_s:
            self._tasks.append(asyncio.create_task(self._watch(), name="engine watchdog"))

    async def ready(self) -> None:
        """Wait until commands are accepted (again)."""
        await self._available.wait()

    async def stop(self) -> None:
        """End the child; running turns end in `TurnFailed`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._available.clear()
        self._in_flight.lose("engine_restarted", "the engine was stopped")
        if self._child is not None:
            await self._child.end(self._stop_grace_s)

    def send(self, command: ContextCommand) -> None:
        """Change a context. See `EngineClient`."""
        self._need_child().say(command)

    def submit(self, command: SubmitTurn) -> TurnStream:
        """Start a turn. See `EngineClient`."""
        child = self._need_child()
        stream = self._in_flight.open_turn(command.turn)
        child.say(command)
        return stream

    def cancel(self, command: CancelTurn) -> None:
        """Cancel a turn. See `EngineClient`."""
        if self._child is not None and self._in_flight.runs(command.turn):
            self._child.say(command)

    async def ask(self, query: Query) -> QueryResult:
        """Query the engine's state. See `EngineClient`."""
        child = self._need_child()
        number, answer = self._in_flight.open_query()
        child.say(Ask(number=number, query=query))
        return await answer

    def _need_child(self) -> WorkerChild:
        if self._child is None or not self.available:
            raise EngineUnavailableError("the engine is restarting")
        if not self._child.takes_more:
            raise EngineUnavailableError("the engine accepts no commands while it hangs in a step")
        return self._child

    # --- life of the child -----------------------------------------------------------------

    async def _launch_child(self) -> None:
        """Start a child and wait until it is ready; clean up one that fails."""
        self._outcome = asyncio.get_running_loop().create_future()
        self._gone.clear()
        child = self._child = WorkerChild(self._on_message, self._on_loss)
        try:
            await child.start()
            child.say(self._launch)
            outcome = await self._outcome
        except BaseException:
            child.kill()
            await child.end(0)
            raise
        match outcome:
            case Ready(info=info):
                # the child's own log shows warnings only
                log.info("attention %s: %s", info.attention, info.attention_reason)
            case Refused():
                await child.end(self._stop_grace_s)
                raise _error_of(outcome)
            case None:
                raise EngineUnavailableError(await _describe_exit(child, "while it started"))

    async def _supervise(self) -> None:
        failures = 0
        while True:
            started_s = time.monotonic()
            await self._gone.wait()
            if time.monotonic() - started_s >= self._backoff.healthy_s:
                failures = 0
            if self._child is not None:
                log.error("%s; restarting it", await _describe_exit(self._child, "unexpectedly"))
            while True:
                failures += 1
                await asyncio.sleep(self._backoff.delay_s(failures))
                try:
                    await self._launch_child()
                    break
                except (EngineError, OSError) as error:
                    log.error("the engine did not restart: %s", error)  # noqa: TRY400 -- the reason is the message
            self._restarts += 1
            log.warning("the engine is running again (restart %d)", self._restarts)

    async def _watch(self) -> None:
        """Ping the child; kill one that does not answer in time. `_supervise` handles its loss."""
        while True:
            await asyncio.sleep(self._watchdog.period_s)
            child = self._child
            if child is None or not self.available:
                continue
            if self._watchdog.poll():
                child.say(Ping())
            elif self._watchdog.is_hung:
                self._report_hang(child.pid)
                child.print_stacks()
                await asyncio.sleep(_STACKS_S)
                child.kill()

    def _report_hang(self, pid: int) -> None:
        self._watchdog.reset()
        self._hangs += 1
        turns = self._in_flight.turns
        shown = ", ".join(turns[:_SHOWN_TURNS]) or "none"
        more = f" and {len(turns) - _SHOWN_TURNS} more" if len(turns) > _SHOWN_TURNS else ""
        log.error(
            "the engine process %d hangs: it has completed no step for %g s (step_timeout_s) "
            "and is killed; its turns: %s%s",
            pid,
            self._watchdog.step_timeout_s,
            shown,
            more,
        )

    def _on_message(self, message: FromWorker) -> None:
        match message:
            case OutputBatch():
                self._in_flight.deliver(message.outputs)
            case Progress():
                self._on_progress(message.text)
            case Pong():
                self._watchdog.answered()
            case Ready():
                self._info = message.info
                self._watchdog.reset()
                self._available.set()
                self._settle(message)
            case Refused():
                self._settle(message)

    def _on_loss(self) -> None:
        self._settle(None)
        self._gone.set()
        if self.available:
            self._available.clear()
            self._epoch += 1
            self._in_flight.lose("engine_restarted", "the engine was lost and is restarting")

    def _settle(self, outcome: Ready | Refused | None) -> None:
        if self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


async def _describe_exit(child: WorkerChild, when: str) -> str:
    code = await child.end(_LAST_OUTPUT_S)
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    hint = " (often because memory ran out)" if code == -signal.SIGKILL else ""
    lines = f"; its last output:\n{child.last_output}" if child.last_output else ""
    return f"the engine process ended {when}: {how}{hint}{lines}"


def _error_of(refused: Refused) -> EngineError:
    match refused.kind:
        case "setting":
            return ConfigError(refused.setting, refused.value, refused.allowed)
        case "model_file":
            return ModelFileError(refused.message)
        case "template":
            return TemplateError(refused.message)
        case "other":
            return EngineUnavailableError(refused.message)


class Watchdog:
    """Counts polls without an answer to a ping; its owner polls every `period_s`, or later.

    `step_timeout_s`: minimum time allowed for a step. The owner may have been stopped itself (a
    suspended machine, a busy gateway): such a gap counts as one poll, however long it was.
    """

    def __init__(self, step_timeout_s: float) -> None:
        self.step_timeout_s = step_timeout_s
        self.period_s = step_timeout_s / LOOKS
        self._missed: int | None = None  # polls since the open ping; None: no ping is open

    def reset(self) -> None:
        """Forget the open ping: the engine was replaced."""
        self._missed = None

    def answered(self) -> None:
        """Record that the engine has answered its ping."""
        self._missed = None

    def poll(self) -> bool:
        """Count a poll; return whether to ping the engine now."""
        if self._missed is None:
            self._missed = 0
            return True
        self._missed += 1
        return False

    @property
    def is_hung(self) -> bool:
        """Whether the engine has exceeded its time."""
        return self._missed is not None and self._missed >= LOOKS
