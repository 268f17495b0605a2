"""`python -m tests.diagnosis.own_server URL`: a server over a fake model that misbehaves when told.

It says its port, then answers each line of its input, a name of `FAULTS`, when that is done; it
ends with its input. Its memory and tasks are its own: pytest's process holds those of all tests.
"""

import asyncio
import ctypes
import json
import mmap
import sys
from contextlib import asynccontextmanager

from tests.harness.stack import real_stack

MIB = 2**20
HEAP_BYTES = 256 * MIB
PAGES_BYTES = 384 * MIB
TASKS = 60


def keep_heap(stack):
    """Give memory back of which the last block keeps all that lies before it."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = [ctypes.c_void_p]
    each = 64 * 1024
    blocks = [libc.malloc(each) for _ in range(HEAP_BYTES // each)]
    for block in blocks[:-1]:
        libc.free(block)


def hold_pages(stack):
    """Hold memory that is no known part. Gives what holds it."""
    pages = mmap.mmap(-1, PAGES_BYTES)
    for _ in range(PAGES_BYTES // MIB):
        pages.write(b"\1" * MIB)
    return pages


def grow_between_looks(stack):
    """Hold such memory when the second look begins, of which the audit is the first part."""
    watch = stack.served.gateway.audit_watch
    audit, looks, held = watch.audit, [], []

    async def audit_after_growth():
        looks.append(1)
        if len(looks) == 2:
            held.append(hold_pages(stack))
        return await audit()

    watch.audit = audit_after_growth


def leave_tasks(stack):
    """Start tasks that nobody ends. Gives them."""
    return [asyncio.create_task(asyncio.Event().wait()) for _ in range(TASKS)]


FAULTS = {one.__name__: one for one in (keep_heap, hold_pages, grow_between_looks, leave_tasks)}


class OwnServer:
    """The program's other end."""

    def __init__(self, process):
        self._process = process
        self.http_url = ""

    async def ready(self):
        """Wait until it listens."""
        self.http_url = f"http://127.0.0.1:{await self._answer()}"

    async def do(self, fault):
        """Bring a state about: a function of `FAULTS`."""
        self._process.stdin.write(f"{fault.__name__}\n".encode())
        assert await self._answer() == fault.__name__

    async def _answer(self):
        line = await self._process.stdout.readline()
        assert line, f"the server ended: {await self._process.wait()}"
        return json.loads(line)


@asynccontextmanager
async def own_server(url):
    """A server in a process of its own on this database, until the block ends."""
    pipe = asyncio.subprocess.PIPE
    command = [sys.executable, "-m", __name__, url]
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        server = OwnServer(process)
        await server.ready()
        yield server
    finally:
        process.stdin.close()
        await process.wait()


async def main(url):
    """Serve until the input ends."""
    kept = []
    async with real_stack(url) as stack:
        _say(stack.served.port)
        while name := (await asyncio.to_thread(sys.stdin.readline)).strip():
            kept.append(FAULTS[name](stack))
            _say(name)


def _say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
