"""Who allocated what stays. Much slower, so only for a short run after a failure."""

import tracemalloc

_FRAMES = 8
_MOST = 10


class Tracing:
    """Of this process, from `start` to `found`."""

    async def start(self):
        tracemalloc.start(_FRAMES)
        self._before = tracemalloc.take_snapshot()

    async def found(self):
        """What has grown the most, with the lines that allocated it."""
        grown = tracemalloc.take_snapshot().compare_to(self._before, "traceback")[:_MOST]
        tracemalloc.stop()
        return "\n".join("\n".join([str(one), *one.traceback.format()[-6:]]) for one in grown)
