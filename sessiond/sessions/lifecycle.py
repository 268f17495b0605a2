"""State transitions of a session: a table. Pure."""

from enum import Enum
from typing import assert_never


class State(Enum):
    """State of a session."""

    NEW = "new"  # no finished turn
    IDLE = "idle"  # the engine has its context
    RUNNING = "running"  # a turn, a reset or added items hold its turn lock
    COLD = "cold"  # its KV was freed; SQL has its ids
    PARKED = "parked"  # its KV was moved to the tiers below the device
    CLOSED = "closed"


class LifecycleEvent(Enum):
    """Event of a session."""

    LOCK = "lock"  # its turn lock was taken
    ADVANCE = "advance"  # its tip has moved to a finished turn
    UNDO = "undo"  # its context is unchanged
    UNDO_FIRST = "undo_first"  # its context is unchanged and has no finished turn yet
    PLACE = "place"  # its context was sent to the engine
    RELEASE = "release"
    PARK = "park"
    RESET = "reset"
    CLOSE = "close"


NEXT: dict[tuple[State, LifecycleEvent], State] = {
    (State.NEW, LifecycleEvent.LOCK): State.RUNNING,
    (State.IDLE, LifecycleEvent.LOCK): State.RUNNING,
    (State.COLD, LifecycleEvent.LOCK): State.RUNNING,
    (State.PARKED, LifecycleEvent.LOCK): State.RUNNING,
    (State.RUNNING, LifecycleEvent.ADVANCE): State.IDLE,
    (State.RUNNING, LifecycleEvent.UNDO): State.IDLE,
    (State.RUNNING, LifecycleEvent.UNDO_FIRST): State.NEW,
    (State.RUNNING, LifecycleEvent.RESET): State.NEW,
    (State.RUNNING, LifecycleEvent.CLOSE): State.CLOSED,
    (State.COLD, LifecycleEvent.PLACE): State.IDLE,
    (State.NEW, LifecycleEvent.RELEASE): State.NEW,
    (State.IDLE, LifecycleEvent.RELEASE): State.COLD,
    (State.COLD, LifecycleEvent.RELEASE): State.COLD,
    (State.PARKED, LifecycleEvent.RELEASE): State.PARKED,
    (State.NEW, LifecycleEvent.PARK): State.NEW,
    (State.IDLE, LifecycleEvent.PARK): State.PARKED,
    (State.COLD, LifecycleEvent.PARK): State.COLD,
    (State.PARKED, LifecycleEvent.PARK): State.PARKED,
}


class TransitionError(Exception):
    """A bug: the state of the session does not allow the event."""

    def __init__(self, state: State, event: LifecycleEvent) -> None:
        super().__init__(f"{event.value} in state {state.value}")
        self.state = state
        self.event = event


def after(state: State, event: LifecycleEvent) -> State:
    """The state after the event.

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
