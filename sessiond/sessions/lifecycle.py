"""State transitions of a session: a table. Pure."""

from enum import Enum
from typing import assert_never


class State(Enum):
    """State of a session."""

    NEW = "new"  # no finished turn
    IDLE = "idle"  # the engine has its context
    RUNNING = "running"  # a turn, a reset or added items change it
    COLD = "cold"  # its KV was freed; SQL has its ids
    PARKED = "parked"  # its KV was moved to the tiers below the device
    CLOSED = "closed"


class Event(Enum):
    """Event of a session."""

    CLAIM = "claim"  # its turn lock was taken
    ADVANCE = "advance"  # its tip has moved to a finished turn
    UNDO = "undo"  # nothing has changed
    UNDO_FIRST = "undo_first"  # nothing has changed, and there still is no finished turn
    PLACE = "place"  # its context was sent to the engine
    RELEASE = "release"
    PARK = "park"
    RESET = "reset"
    CLOSE = "close"


NEXT: dict[tuple[State, Event], State] = {
    (State.NEW, Event.CLAIM): State.RUNNING,
    (State.IDLE, Event.CLAIM): State.RUNNING,
    (State.COLD, Event.CLAIM): State.RUNNING,
    (State.PARKED, Event.CLAIM): State.RUNNING,
    (State.RUNNING, Event.ADVANCE): State.IDLE,
    (State.RUNNING, Event.UNDO): State.IDLE,
    (State.RUNNING, Event.UNDO_FIRST): State.NEW,
    (State.RUNNING, Event.RESET): State.NEW,
    (State.RUNNING, Event.CLOSE): State.CLOSED,
    (State.COLD, Event.PLACE): State.IDLE,
    (State.NEW, Event.RELEASE): State.NEW,
    (State.IDLE, Event.RELEASE): State.COLD,
    (State.COLD, Event.RELEASE): State.COLD,
    (State.PARKED, Event.RELEASE): State.PARKED,
    (State.NEW, Event.PARK): State.NEW,
    (State.IDLE, Event.PARK): State.PARKED,
    (State.COLD, Event.PARK): State.COLD,
    (State.PARKED, Event.PARK): State.PARKED,
}


class TransitionError(Exception):
    """A bug: the state of the session does not allow the event."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f"{event.value} in state {state.value}")
        self.state = state
        self.event = event


def after(state: State, event: Event) -> State:
    """The state that follows.

    Raises:
        TransitionError: the table has no such transition.
    """
    following = NEXT.get((state, event))
    if following is None:
        raise TransitionError(state, event)
    return following


def is_free(state: State) -> bool:
    """Whether a turn may begin."""
    match state:
        case State.NEW | State.IDLE | State.COLD | State.PARKED:
            return True
        case State.RUNNING | State.CLOSED:
            return False
        case _:
            assert_never(state)
