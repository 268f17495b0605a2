"""Until when sessions that no socket holds keep their KV. Pure; time is passed in."""

from heapq import heapify, heappop, heappush

from engine.ids import SessionId

_FEW = 64


class Holds:
    """One deadline per session, in the clock's seconds. What is due is found without a search."""

    def __init__(self) -> None:
        self._until: dict[SessionId, float] = {}
        self._heap: list[tuple[float, SessionId]] = []  # every deadline that held once, and more

    def __len__(self) -> int:
        return len(self._until)

    @property
    def noted_count(self) -> int:
        """Deadlines that are kept in mind, those that hold no more too: a few times as many."""
        return len(self._heap)

    def hold(self, session: SessionId, until_s: float) -> None:
        """Keep the session's KV until then, whatever was said before."""
        self._until[session] = until_s
        heappush(self._heap, (until_s, session))
        if len(self._heap) > 2 * len(self._until) + _FEW:
            self._heap = [(until_s, session) for session, until_s in self._until.items()]
            heapify(self._heap)

    def drop(self, session: SessionId) -> None:
        """The session needs no deadline."""
        self._until.pop(session, None)

    def take_due(self, now_s: float) -> list[SessionId]:
        """Sessions whose time is over, in the order of their ends; each is told once."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            until_s, session = heappop(self._heap)
            if self._until.get(session) == until_s:
                del self._until[session]
                due.append(session)
        return due
