"""Keep-alive deadlines of sessions that no socket holds. Pure; time is passed in."""

from heapq import heapify, heappop, heappush

from engine.ids import SessionId

_FEW = 64


class Holds:
    """One deadline per session, in seconds, in a heap."""

    def __init__(self) -> None:
        self._until: dict[SessionId, float] = {}
        self._heap: list[tuple[float, SessionId]] = []  # includes replaced deadlines

    def __len__(self) -> int:
        return len(self._until)

    @property
    def noted_count(self) -> int:
        """Heap entries, replaced ones included: at most a few times the deadlines."""
        return len(self._heap)

    def hold(self, session: SessionId, until_s: float) -> None:
        """Set the session's deadline, replacing an earlier one."""
        self._until[session] = until_s
        heappush(self._heap, (until_s, session))
        if len(self._heap) > 2 * len(self._until) + _FEW:
            self._heap = [(until_s, session) for session, until_s in self._until.items()]
            heapify(self._heap)

    def drop(self, session: SessionId) -> None:
        """Remove the session's deadline."""
        self._until.pop(session, None)

    def take_due(self, now_s: float) -> list[SessionId]:
        """Pop the sessions whose deadline has passed, in order of deadline."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            until_s, session = heappop(self._heap)
            if self._until.get(session) == until_s:
                del self._until[session]
                due.append(session)
        return due
