"""Short words for tests of chats whose turns a policy drops."""

from policies.plan import KeepTurns
from sessiond.domain import ContextChanged, PolicyChoice
from tests.harness.service import (
    DEFAULT,
    ask,
    message,
    rendered,
)

EXACT = PolicyChoice(type="scripted")
SHIFTED = PolicyChoice(type="scripted", fidelity="shifted")
PREFIX = message("system", DEFAULT)


async def chat(world, *texts, **fields):
    """Turns of one session; returns it and what each turn added to its context."""
    session, added = None, []
    for text in texts:
        turn, finished = await world.turn(ask(text, conversation=session, **fields))
        session = turn.accepted.session_id
        added.append(rendered(("user", text), ("assistant", finished.text)))
    return session, added


def keep(world, *turns, **fields):
    world.policies.scripted.plans.append(KeepTurns(turns=turns, **fields))


def changes(told):
    return [entry for entry in told if isinstance(entry, ContextChanged)]
