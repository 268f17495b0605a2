"""Events of a turn for one reader: from the start, or from where a client stopped."""

from collections.abc import Iterable, Iterator

from sessiond.api.protocol.events import ResponseEncoder
from sessiond.api.protocol.resources import Json
from sessiond.domain import TurnAccepted, TurnLogEntry
from sessiond.errors import RequestError
from sessiond.sessions.turn import LogReplay


class ResponseEventEncoder:
    """Encodes all events and skips those that the reader has received."""

    def __init__(self, encoder: ResponseEncoder, *, begins: bool = True, after: int = -1) -> None:
        self.encoder = encoder
        self._begins = begins
        self._after = after

    @classmethod
    def of(cls, accepted: TurnAccepted, stream_id: str | None) -> "ResponseEventEncoder":
        """Create one for the reader of a new turn."""
        return cls(ResponseEncoder(accepted, stream_id))

    @classmethod
    def again(
        cls, replay: LogReplay, stream_id: str | None, starting_after: int | None
    ) -> "ResponseEventEncoder":
        """Create one for a reader that has the events up to `starting_after` (None: it has none).

        Raises:
            RequestError: events that the reader lacks are no longer kept.
        """
        after = -1 if starting_after is None else starting_after
        if replay.is_stored and after > 0:
            raise _refused(
                after,
                "the response's events are no longer kept; "
                "a request without it replays the stored response from the start",
            )
        encoder, skipped = ResponseEncoder(replay.accepted, stream_id), replay.skipped
        if not skipped:
            return cls(encoder, after=after)
        last = encoder.skip(deltas=skipped.deltas, others=skipped.others, text=skipped.text)
        if after < last:
            raise _refused(
                after,
                f"events up to {last} are no longer kept, so it must be {last} or more; "
                "without `stream` the whole response is returned",
            )
        return cls(encoder, begins=False, after=after)

    def opening_events(self) -> Iterator[Json]:
        """Yield the first event, if the reader lacks it."""
        return self._wanted([self.encoder.created()] if self._begins else [])

    def encode(self, entry: TurnLogEntry) -> Iterator[Json]:
        """Yield the events of a log entry that the reader lacks."""
        return self._wanted(self.encoder.encode(entry))

    def _wanted(self, events: Iterable[Json]) -> Iterator[Json]:
        return (event for event in events if event["sequence_number"] > self._after)


def too_slow() -> RequestError:
    """Build the error for a reader whose next event is no longer kept."""
    return RequestError(
        "invalid_value",
        "unread events are no longer kept: the client reads too slowly",
        param="starting_after",
    )


def _refused(after: int, why: str) -> RequestError:
    given = "no starting_after" if after < 0 else f"starting_after={after}"
    return RequestError("invalid_value", f"{given}: {why}", param="starting_after")
