"""Who holds a session, and who waits."""

import asyncio

import pytest

from sessiond.domain import AttachmentId
from sessiond.errors import RequestError
from sessiond.sessions.live_session import LockTicket, TurnLock

LANE = (AttachmentId("s"), "a")
GONE = RequestError("conversation_not_found", "gone")


def test_the_first_holds_and_only_its_own_lane_may_wait():
    turn_lock, first = TurnLock(), LockTicket(LANE)
    assert turn_lock.try_acquire(first)
    for origin in (None, (AttachmentId("s"), "b"), (AttachmentId("s"), None), ("t", "a")):
        assert not turn_lock.try_acquire(LockTicket(origin))
    assert turn_lock.try_acquire(LockTicket(LANE))
    assert turn_lock.holds(first)


def test_claims_without_origin_never_wait_for_each_other():
    turn_lock = TurnLock()
    assert turn_lock.try_acquire(LockTicket(None))
    assert not turn_lock.try_acquire(LockTicket(None))


async def test_those_that_wait_come_first_in_first_out():
    turn_lock = TurnLock()
    tickets = [LockTicket(LANE) for _ in range(4)]
    for ticket in tickets:
        turn_lock.try_acquire(ticket)
    turn_lock.leave(tickets[2])  # it gives up waiting
    for current, following in ((0, 1), (1, 3)):
        assert not turn_lock.holds(tickets[following])
        turn_lock.leave(tickets[current])
        await asyncio.wait_for(tickets[following].granted(), 60)
        assert turn_lock.holds(tickets[following])
    turn_lock.leave(tickets[3])
    turn_lock.leave(tickets[3])
    assert not turn_lock.is_locked


async def test_the_one_that_closes_comes_next_and_the_others_are_refused():
    turn_lock = TurnLock()
    holder, waiting, closing = LockTicket(LANE), LockTicket(LANE), LockTicket(None)
    turn_lock.try_acquire(holder)
    turn_lock.try_acquire(waiting)
    turn_lock.refuse_all(GONE)
    turn_lock.acquire_or_wait(closing)
    with pytest.raises(RequestError, match="gone"):
        await waiting.granted()
    turn_lock.leave(holder)
    await asyncio.wait_for(closing.granted(), 60)
    assert turn_lock.holds(closing)
