"""The events of a turn, for one reader: from its beginning, or from where a client had got to."""

from collections.abc import Iterable, Iterator

from sessiond.errors import RequestError
from sessiond.facts import TurnAccepted, TurnFact
from sessiond.gateway.protocol.events import ResponseEncoder
from sessiond.gateway.protocol.resources import Json
from sessiond.sessions.replays import Replay


class Telling:
    """Encodes all events and leaves out those that the reader has had."""

    def __init__(self, encoder: ResponseEncoder, *, begins: bool = True, after: int = -1) -> None:
        self.encoder = encoder
        self._begins = begins
        self._after = after

    @classmethod
    def of(cls, accepted: TurnAccepted, stream_id: str | None) -> "Telling":
        """For the reader of a new turn."""
        return cls(ResponseEncoder(accepted, stream_id))

    @classmethod
    def again(cls, replay: Replay, stream_id: str | None, starting_after: int | None) -> "Telling":
        """For a reader who has had the events up to `starting_after`; None: it has had none.

        Raises:
            RequestError: events that it has not had are no longer kept.
        """
        after = -1 if starting_after is None else starting_after
        if replay.is_stored and after > 0:
            raise _refused(
                after,
                "how the response was told is no longer kept: allowed is a request without it, "
                "which tells the stored response from its beginning",
            )
        encoder, skipped = ResponseEncoder(replay.accepted, stream_id), replay.skipped
        if not skipped:
            return cls(encoder, after=after)
        last = encoder.skip(deltas=skipped.deltas, others=skipped.others, text=skipped.text)
        if after < last:
            raise _refused(
                after,
                f"events up to {last} are no longer kept: allowed is {last} or more; "
                "without `stream` the response is told whole",
            )
        return cls(encoder, begins=False, after=after)

    def beginning(self) -> Iterator[Json]:
        """The first event, if the reader has not had it."""
        return self._wanted([self.encoder.created()] if self._begins else [])

    def encode(self, fact: TurnFact) -> Iterator[Json]:
        """What happened, if the reader has not had it."""
        return self._wanted(self.encoder.encode(fact))

    def _wanted(self, events: Iterable[Json]) -> Iterator[Json]:
        return (event for event in events if event["sequence_number"] > self._after)


def too_slow() -> RequestError:
    """A reader whose next event is no longer kept."""
    return RequestError(
        "invalid_value",
        "events that were not read yet are no longer kept: they were not read fast enough",
        param="starting_after",
    )


def _refused(after: int, why: str) -> RequestError:
    given = "no starting_after" if after < 0 else f"starting_after={after}"
    return RequestError("invalid_value", f"{given}: {why}", param="starting_after")
