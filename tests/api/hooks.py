"""Handles by which tests over the real stack hold the engine back, instead of racing with it."""

import asyncio
import threading


class Steps:
    """Holds the engine's steps back until they are released."""

    def __init__(self, running):
        self.model = running.model
        self.model.gate = threading.Event()

    async def begun(self):
        """Wait until a step is held back: until then the engine answers."""
        async with asyncio.timeout(60):
            while not self.model.steps:  # noqa: ASYNC110 -- the engine's thread counts them
                await asyncio.sleep(0.001)

    def release(self):
        self.model.gate.set()


class Cancels:
    """Tells when the engine was told to cancel."""

    def __init__(self, running):
        self.told = asyncio.Event()
        tell = running.engine.cancel

        def cancel(command):
            tell(command)
            self.told.set()

        running.engine.cancel = cancel


class Submits:
    """Counts the turns that the engine was told of: `created` may come before it was."""

    def __init__(self, running):
        self.count = 0
        self._more = asyncio.Event()
        submit = running.engine.submit

        def counted(command):
            stream = submit(command)
            self.count += 1
            self._more.set()
            return stream

        running.engine.submit = counted

    async def reach(self, count):
        """Wait until there were as many."""
        while self.count < count:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), 60)
