"""A turn that speaks until a test wants it to end."""

import pytest

from sessiond.domain import AttachmentId
from tests.harness.service import (
    SOCKET,
    ask,
)

OTHER = AttachmentId("sock_2")


@pytest.fixture
async def talk(world, engine):
    """A session with one finished turn, and its context."""
    turn, _ = await world.turn(ask("hi"))
    engine.auto = False
    session = turn.accepted.session_id
    return session, turn.accepted.response_id, await world.context(session)


async def speaking(world, engine, text="half", attachment=SOCKET, **where):
    turn = await world.begin(ask("a", **where), attachment=attachment)
    engine.begin(turn.accepted.response_id)
    engine.say(turn.accepted.response_id, text)
    return turn
