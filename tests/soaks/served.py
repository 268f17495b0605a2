"""The whole stack in a process of its own, which tells what it holds: both ends.

`python -m tests.soaks.served URL` serves until its input ends. Its first line of output is where;
then each line of input is a question, and gets a line.
"""

import asyncio
import collections
import json
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import asdict

from engine.ipc.queries import GetAudit, GetStats
from engine.system.heap import ShortPauses
from sessiond.sessions.limits import ServiceLimits
from sessiond.store.database import READERS
from tests.fakes.fake_model import Draw
from tests.harness.stack import real_stack
from tests.soaks.curve import Sample, sample
from tests.soaks.tracing import Tracing

_LIMITS = ServiceLimits(
    # what is kept for those that return is bounded, and fills up within the warm-up
    http_hold_s=0.05,
    reap_every_s=0.2,
    replay_ttl_s=0.2,
    max_cold_contexts=16,
)
# glibc keeps freed blocks of each size for each thread, here 0.8 MiB in all. They count as in use,
# and nobody has them.
_NO_THREAD_CACHES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
_ANSWER_WITHIN_S = 120
_LINE_BYTES = 2**20


class ServedStack:
    """The process, as those see it who talk to it."""

    def __init__(self, process, ws_url):
        self._process = process
        self.ws_url = ws_url

    async def sample(self, turns):
        """What it holds once nobody is there, no turn runs and nothing waits for a return."""
        return Sample(turns=turns, **await self._ask("sample"))

    async def start(self):
        """Trace its allocations from now on."""
        await self._ask("trace")

    async def found(self):
        """Who allocated what has been allocated since, and is there."""
        return await self._ask("allocations")

    async def _ask(self, question):
        self._process.stdin.write(f"{question}\n".encode())
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return json.loads(await line_of(self._process))


@asynccontextmanager
async def served_stack(url):
    """Run it for the time of a `with` block, on a migrated database."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.soaks.served", url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES,
        env=os.environ | _NO_THREAD_CACHES,
    )
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            ws_url = json.loads(await line_of(process))
        yield ServedStack(process, ws_url)
        process.stdin.close()
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def line_of(process):
    line = await process.stdout.readline()
    if not line:
        raise AssertionError(f"the stack ended with {await process.wait()}: see its errors")
    return line


async def serve(url):
    """The process itself. Its garbage is collected as a server's is."""
    ShortPauses().begin()
    async with real_stack(url, service_limits=_LIMITS, draw=Draw(stop_every=12)) as stack:
        quiet(stack.model)
        await _all_connections(stack.store)
        tasks = len(asyncio.all_tasks())
        _say(stack.served.ws_url)
        questions = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(questions), sys.stdin
        )
        tracing = Tracing()
        while question := (await questions.readline()).decode().strip():
            match question:
                case "sample":
                    await _nobody_there(stack, tasks)
                    told = asdict(sample(0, await at_rest(stack.engine)))
                    del told["turns"]  # who asks knows
                    _say(told)
                case "trace":
                    await tracing.start()
                    _say(None)
                case "allocations":
                    _say(await tracing.found())
                case _:
                    raise ValueError(question)


async def _all_connections(store):
    """Open as many files as the database ever has, which is else left to chance."""
    together = asyncio.Barrier(READERS)
    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(store.database.read(lambda _: together.wait()))


def quiet(model):
    """A fake that keeps no diary of its steps."""
    model.batches = collections.deque(maxlen=1)
    model.copies = collections.deque(maxlen=1)
    return model


async def at_rest(engine):
    """The engine's numbers once nobody holds a block; its audit is clean."""
    async with asyncio.timeout(60):
        while (stats := await engine.ask(GetStats())).active_blocks:  # noqa: ASYNC110 -- asks a thread
            await asyncio.sleep(0.005)
    audit = await engine.ask(GetAudit())
    assert audit.violations == []
    return stats


async def _nobody_there(stack, tasks):
    """No socket, no turn, no task of one, and nothing kept for those that might return."""
    await stack.idle()
    service, connections = stack.served.service, stack.served.gateway.connections
    sockets = stack.served.server.server_state.connections  # open files, a little longer
    async with asyncio.timeout(60):
        while (  # noqa: ASYNC110 -- what is awaited has no event of its own
            len(asyncio.all_tasks()) > tasks
            or connections.open_count
            or sockets
            or len(service.runner.replays)
            or service.runner.bound_turns()
        ):
            await asyncio.sleep(0.01)


def _say(what):
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
