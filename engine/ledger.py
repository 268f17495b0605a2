"""What a client still waits for: running turns and open questions. Asyncio thread only."""

import asyncio
from collections.abc import Iterable
from typing import Literal

from engine.errors import EngineUnavailableError
from engine.framing import Answered, EngineOutput
from engine.ids import TurnId
from engine.messages import TurnCounts, TurnEnding, TurnEvent, TurnFailed
from engine.questions import Answer
from engine.turn_stream import TurnStream


class Ledger:
    """Every opened turn gets exactly one ending, every question an answer or an error."""

    def __init__(self) -> None:
        self._turns: dict[TurnId, TurnStream] = {}
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._asked = 0

    def runs(self, turn: TurnId) -> bool:
        """Whether this turn is open."""
        return turn in self._turns

    @property
    def turns(self) -> list[TurnId]:
        """Those that are open, the oldest first."""
        return list(self._turns)

    def open_turn(self, turn: TurnId) -> TurnStream:
        """Begin a turn's events.

        Raises:
            ValueError: a turn of this id is open.
        """
        if turn in self._turns:
            raise ValueError(f"turn {turn!r} is running already")
        stream = self._turns[turn] = TurnStream(turn)
        return stream

    def open_question(self) -> tuple[int, asyncio.Future[Answer]]:
        """A number to ask under, and where the answer will be."""
        self._asked += 1
        future = asyncio.get_running_loop().create_future()
        self._questions[self._asked] = future
        return self._asked, future

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Hand on what the engine said. What nobody waits for any more is dropped."""
        for output in outputs:
            if isinstance(output, Answered):
                question = self._questions.pop(output.number, None)
                if question is not None and not question.done():
                    question.set_result(output.answer)
            else:
                self._deliver_event(output)

    def lose(self, code: Literal["internal_error", "engine_restarted"], message: str) -> None:
        """The engine is gone: end every turn with `TurnFailed`, every question with an error."""
        for turn in list(self._turns):
            counts = TurnCounts()
            self._deliver_event(TurnFailed(turn=turn, code=code, message=message, counts=counts))
        questions, self._questions = self._questions, {}
        for question in questions.values():
            if not question.done():
                question.set_exception(EngineUnavailableError(message))

    def _deliver_event(self, event: TurnEvent) -> None:
        stream = self._turns.get(event.turn)
        if stream is None:
            return
        stream.push(event)
        if isinstance(event, TurnEnding):
            del self._turns[event.turn]
