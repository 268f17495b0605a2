"""Re-arrival statistics: counts which sessions returned, and when. Loop thread only.

O(1) per turn and a fixed number of counts: one row per kind of session, whatever their number.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from engine.ids import SessionId
from policies.returns import NOTHING_SEEN, ReturnCounts, TurnKind

# Views in between share one set of counts: deriving rates from it costs milliseconds.
_REFRESH_S = 30.0
# At this number all counts are halved, so that recent behaviour outweighs last week's.
_MOST_WATCHED = 100_000
_MOVED = 256  # sessions at a time: many more than one event adds


@dataclass(frozen=True, slots=True)
class _Idle:
    since_s: float
    kind: TurnKind


class ReturnStatistics:
    """Tracks idle sessions through the spans of `ages_s`.

    Sessions of one span are in order of the time they became idle, so those that have left it are
    at the front. A session that closes counts neither as returned nor as idle.
    """

    def __init__(self, ages_s: Sequence[float] = NOTHING_SEEN.ages_s) -> None:
        self._ages_s = ages_s
        self._in_span: list[OrderedDict[SessionId, _Idle]] = [OrderedDict() for _ in ages_s]
        self._span_of: dict[SessionId, int] = {}
        self._watched: dict[TurnKind, list[int]] = {}
        self._returned: dict[TurnKind, list[int]] = {}
        self._total = 0
        self._counts = NOTHING_SEEN
        self._counted_s: float | None = None

    def note_idle(self, session: SessionId, kind: TurnKind, now_s: float) -> None:
        """A turn has ended."""
        self.forget(session)
        self._in_span[0][session] = _Idle(now_s, kind)
        self._span_of[session] = 0

    def note_return(self, session: SessionId, now_s: float) -> None:
        """The session's next turn has arrived."""
        self._advance(now_s)
        span = self._span_of.pop(session, None)
        if span is None:
            return
        idle = self._in_span[span].pop(session)
        while now_s - idle.since_s >= self._ages_s[span]:  # earlier ones have not been advanced yet
            self._row(self._watched, idle.kind)[span] += 1
            span += 1
            if span == len(self._ages_s):
                return
        self._row(self._watched, idle.kind)[span] += 1
        self._row(self._returned, idle.kind)[span] += 1

    def forget(self, session: SessionId) -> None:
        """The session has closed, or was never idle."""
        span = self._span_of.pop(session, None)
        if span is not None:
            del self._in_span[span][session]

    def counts(self, now_s: float) -> ReturnCounts:
        """Counts up to now, or up to shortly before."""
        if self._counted_s is None or now_s - self._counted_s >= _REFRESH_S:
            self._advance(now_s)
            if self._total > _MOST_WATCHED:
                self._halve()
            self._counted_s = now_s
            self._counts = ReturnCounts(
                ages_s=self._ages_s,
                watched={kind: tuple(row) for kind, row in self._watched.items()},
                returned={kind: tuple(row) for kind, row in self._returned.items()},
            )
        return self._counts

    def _advance(self, now_s: float) -> None:
        """Move sessions to their current spans: a bounded number, since they come in crowds."""
        last, left = len(self._ages_s) - 1, _MOVED
        for span, (sessions, end_s) in enumerate(zip(self._in_span, self._ages_s, strict=True)):
            while sessions and left:
                session, idle = next(iter(sessions.items()))
                if now_s - idle.since_s < end_s:
                    break
                left -= 1
                del sessions[session]
                self._row(self._watched, idle.kind)[span] += 1
                if span < last:
                    self._in_span[span + 1][session] = idle
                    self._span_of[session] = span + 1
                else:
                    del self._span_of[session]

    def _row(self, rows: dict[TurnKind, list[int]], kind: TurnKind) -> list[int]:
        self._total += 1
        return rows.setdefault(kind, [0] * len(self._ages_s))

    def _halve(self) -> None:
        self._total //= 2
        for rows in (self._watched, self._returned):
            for kind, row in rows.items():
                rows[kind] = [count // 2 for count in row]
