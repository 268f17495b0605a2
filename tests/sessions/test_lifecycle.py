"""The table of a session's states."""

import itertools

import pytest

from sessiond.sessions.live_session import (
    NEXT,
    LifecycleEvent,
    State,
    TransitionError,
    after,
    is_free,
)


def test_what_the_table_lacks_is_a_bug():
    for state, event in itertools.product(State, LifecycleEvent):
        if (state, event) in NEXT:
            assert after(state, event) is NEXT[state, event]
        else:
            with pytest.raises(
                TransitionError, match=f"{event.value} is not allowed in state {state.value}"
            ):
                after(state, event)


def test_a_lock_holder_leaves_a_session_free_or_closed():
    endings = {after(State.RUNNING, event) for at, event in NEXT if at is State.RUNNING}
    assert endings == {State.HELD, State.NEW, State.CLOSED}


def test_free_states_are_those_that_can_be_claimed():
    assert {state for state in State if is_free(state)} == {
        state for state, event in NEXT if event is LifecycleEvent.LOCK
    }


def test_a_closed_session_stays_closed():
    assert not [event for state, event in NEXT if state is State.CLOSED]


def test_every_state_but_new_is_reached():
    assert set(NEXT.values()) == set(State)
