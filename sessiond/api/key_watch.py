"""Tracks keys in use and ends the work of revoked ones. Asyncio only."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

from sessiond.store.errors import StoreError

logger = logging.getLogger(__name__)

FindUnusable = Callable[[Collection[str]], Awaitable[frozenset[str]]]


class KeyWatch:
    """Handles keys revoked here at once, and polls every `every_s` for keys revoked elsewhere.

    `find_unusable` returns which of some keys are no longer valid; None: there are no keys.
    `at_work` returns the keys of background work, `on_revoked` ends that work.
    """

    def __init__(
        self,
        find_unusable: FindUnusable | None = None,
        *,
        at_work: Callable[[], Collection[str]] = frozenset,
        on_revoked: Callable[[str], None] = lambda _: None,
        every_s: float = 0.5,
    ) -> None:
        self._find_unusable = find_unusable
        self._at_work = at_work
        self._on_revoked = on_revoked
        self._every_s = every_s
        self._uses: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def using(self, key_id: str | None) -> Iterator[asyncio.Event]:
        """Mark a key as in use; the event is set when it is revoked (never for None)."""
        revoked = asyncio.Event()
        if key_id is None:
            yield revoked
            return
        uses = self._uses[key_id]
        uses.add(revoked)
        try:
            yield revoked
        finally:
            uses.discard(revoked)
            if not uses:
                self._uses.pop(key_id, None)

    def revoke(self, key_ids: Iterable[str]) -> None:
        """End the work of keys that were just revoked."""
        for key_id in key_ids:
            for revoked in self._uses.get(key_id, ()):
                revoked.set()
            self._on_revoked(key_id)

    def start(self) -> None:
        """Start polling."""
        if self._find_unusable is not None:
            self._task = asyncio.create_task(self._watch(self._find_unusable))

    async def stop(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, find_unusable: FindUnusable) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            in_use = self._uses.keys() | self._at_work()
            try:
                if in_use:
                    self.revoke(await find_unusable(in_use))
            except StoreError as error:
                logger.error("API keys cannot be verified: %s", error)  # noqa: TRY400 -- no trace helps
            except Exception:
                logger.exception("the check for revoked API keys failed; it is retried")
