"""What one turn crosses: frame in, terminal event out, through gateway, store and engine."""

from sessiond.sessions.limits import ServiceLimits
from tests.api.frames import create, hear_turn
from tests.fakes.fake_model import Draw
from tests.harness.stack import MODEL
from tests.harness.trace import traced

MOST_FILES, MOST_DEEP = 90, 18

# A timer that fires within the turn is no part of it.
QUIET = ServiceLimits(reap_every_s=3600.0, heartbeat_s=3600.0)


async def warm_turn(stack):
    """The trace of the second turn of a session."""
    with traced(records=False) as trace:
        async with (
            stack(draw=Draw(stop_every=8), service_limits=QUIET) as running,
            running.served.connect() as ws,
        ):
            await create(ws, model=MODEL, input="good morning")
            first = (await hear_turn(ws))[-1]["response"]
            trace.records = True
            await create(ws, model=MODEL, input="and you?", previous_response_id=first["id"])
            last = (await hear_turn(ws))[-1]
            trace.records = False
    assert last["type"] == "response.completed"
    return trace


async def test_a_turn_crosses_few_files_and_no_deep_stack(stack):
    trace = await warm_turn(stack)
    files, deepest = sorted(trace.files), trace.deepest
    assert {"sessiond/api/socket.py", "sessiond/store/turns.py", "engine/core/loop.py"} < set(files)
    assert len(files) <= MOST_FILES, "\n".join([f"{len(files)} files", *files])
    assert len(deepest) <= MOST_DEEP, "\n".join([f"{len(deepest)} frames", *deepest])
