"""Who holds a session, and who waits."""

import asyncio

import pytest

from sessiond.errors import RequestError
from sessiond.facts import AttachmentId
from sessiond.sessions.seat import Claim, Seat

LANE = (AttachmentId("s"), "a")
GONE = RequestError("conversation_not_found", "gone")


def test_the_first_holds_and_only_its_own_lane_may_wait():
    seat, first = Seat(), Claim(LANE)
    assert seat.try_take(first)
    for origin in (None, (AttachmentId("s"), "b"), (AttachmentId("s"), None), ("t", "a")):
        assert not seat.try_take(Claim(origin))
    assert seat.try_take(Claim(LANE))
    assert seat.holds(first)


def test_claims_without_origin_never_wait_for_each_other():
    seat = Seat()
    assert seat.try_take(Claim(None))
    assert not seat.try_take(Claim(None))


async def test_those_that_wait_come_first_in_first_out():
    seat = Seat()
    claims = [Claim(LANE) for _ in range(4)]
    for claim in claims:
        seat.try_take(claim)
    seat.leave(claims[2])  # it gives up waiting
    for current, following in ((0, 1), (1, 3)):
        assert not seat.holds(claims[following])
        seat.leave(claims[current])
        await asyncio.wait_for(claims[following].granted(), 60)
        assert seat.holds(claims[following])
    seat.leave(claims[3])
    seat.leave(claims[3])
    assert not seat.is_taken


async def test_the_one_that_closes_comes_next_and_the_others_are_refused():
    seat = Seat()
    holder, waiting, closing = Claim(LANE), Claim(LANE), Claim(None)
    seat.try_take(holder)
    seat.try_take(waiting)
    seat.refuse_all(GONE)
    seat.take_or_wait(closing)
    with pytest.raises(RequestError, match="gone"):
        await waiting.granted()
    seat.leave(holder)
    await asyncio.wait_for(closing.granted(), 60)
    assert seat.holds(closing)
