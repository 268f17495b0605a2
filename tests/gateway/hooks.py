"""Handles by which tests over the real stack hold the engine back, instead of racing with it."""

import asyncio
import threading


class Steps:
    """Holds the engine's steps back until they are released."""

    def __init__(self, running):
        self.model = running.model
        self.model.gate = threading.Event()

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
