"""In-flight table of a client: running turns and pending queries. Asyncio thread only."""

import asyncio
from collections.abc import Iterable
from typing import Literal

from engine.errors import EngineUnavailableError
from engine.ids import TurnId
from engine.ipc.framing import EngineOutput, QueryDone
from engine.ipc.messages import TurnCounts, TurnEnding, TurnEvent, TurnFailed
from engine.ipc.queries import QueryResult
from engine.ipc.turn_stream import TurnStream


class InFlightTable:
    """Ensures that every opened turn gets exactly one ending, every query an answer or an error."""

    def __init__(self) -> None:
        self._turns: dict[TurnId, TurnStream] = {}
        self._queries: dict[int, asyncio.Future[QueryResult]] = {}
        self._query_count = 0

    def runs(self, turn: TurnId) -> bool:
        """Whether this turn is in flight."""
        return turn in self._turns

    @property
    def turns(self) -> list[TurnId]:
        """Turns in flight, the oldest first."""
        return list(self._turns)

    def open_turn(self, turn: TurnId) -> TurnStream:
        """Open a turn's event stream.

        Raises:
            ValueError: a turn of this id is in flight.
        """
        if turn in self._turns:
            raise ValueError(f"turn {turn!r} is already running")
        stream = self._turns[turn] = TurnStream(turn)
        return stream

    def open_query(self) -> tuple[int, asyncio.Future[QueryResult]]:
        """Return the number of a new query, and the future of its answer."""
        self._query_count += 1
        future = asyncio.get_running_loop().create_future()
        self._queries[self._query_count] = future
        return self._query_count, future

    def deliver(self, outputs: Iterable[EngineOutput]) -> None:
        """Deliver the engine's output. Output for ended turns and queries is dropped."""
        for output in outputs:
            if isinstance(output, QueryDone):
                query = self._queries.pop(output.number, None)
                if query is not None and not query.done():
                    query.set_result(output.answer)
            else:
                self._deliver_event(output)

    def lose(self, code: Literal["internal_error", "engine_restarted"], message: str) -> None:
        """End every turn with `TurnFailed`, every query with an error: the engine is lost."""
        for turn in list(self._turns):
            counts = TurnCounts()
            self._deliver_event(TurnFailed(turn=turn, code=code, message=message, counts=counts))
        queries, self._queries = self._queries, {}
        for query in queries.values():
            if not query.done():
                query.set_exception(EngineUnavailableError(message))

    def _deliver_event(self, event: TurnEvent) -> None:
        stream = self._turns.get(event.turn)
        if stream is None:
            return
        stream.push(event)
        if isinstance(event, TurnEnding):
            del self._turns[event.turn]
