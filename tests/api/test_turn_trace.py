"""What one turn crosses: frame in, terminal event out, through gateway, store and engine."""

import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from sessiond.sessions.limits import ServiceLimits
from tests.api.frames import create, hear_turn
from tests.fakes.fake_model import Draw
from tests.harness.stack import MODEL

ROOT = Path(__file__).parents[2]
OURS = tuple(f"{ROOT / package}/" for package in ("sessiond", "engine", "policies"))
MOST_FILES, MOST_DEEP = 90, 20

# A timer that fires within the turn is no part of it.
QUIET = ServiceLimits(reap_every_s=3600.0, heartbeat_s=3600.0)


def place_of(frame):
    code = frame.f_code
    return f"{Path(code.co_filename).relative_to(ROOT)}:{code.co_qualname}"


class Trace:
    """The functions of ours that any thread calls while it records, and the deepest stack."""

    def __init__(self):
        self.records = False
        self.functions = set()
        self.deepest = []

    @property
    def files(self):
        return sorted({function.partition(":")[0] for function in self.functions})

    def __call__(self, frame, event, argument):
        if not self.records or event != "call" or not frame.f_code.co_filename.startswith(OURS):
            return
        self.functions.add(place_of(frame))
        stack = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                stack.append(frame)
            frame = frame.f_back
        if len(stack) > len(self.deepest):
            self.deepest = [place_of(each) for each in reversed(stack)]


@contextmanager
def traced():
    """Trace this thread and those that start within the block."""
    trace = Trace()
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def warm_turn(stack):
    """The trace of the second turn of a session."""
    with traced() as trace:
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
    files, deepest = trace.files, trace.deepest
    assert {"sessiond/api/socket.py", "sessiond/store/turns.py", "engine/core/loop.py"} < set(files)
    listed = "\n".join(files)
    assert len(files) <= MOST_FILES, (
        f"files must be at most {MOST_FILES} (got {len(files)}):\n{listed}"
    )
    listed = "\n".join(deepest)
    assert len(deepest) <= MOST_DEEP, (
        f"stacked frames must be at most {MOST_DEEP} (got {len(deepest)}):\n{listed}"
    )
