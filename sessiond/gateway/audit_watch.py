"""Has the engine audited now and then, while no turn needs it. Asyncio only."""

import asyncio
import logging

from engine.client import EngineClient
from engine.questions import AuditReport, EngineStats, GetAudit, GetStats
from sessiond.errors import RequestError
from sessiond.sessions.questions import ask_in_time

logger = logging.getLogger(__name__)


class AuditWatch:
    """An audit looks at every block and session, too much for each scrape: one per `every_s`."""

    def __init__(
        self, engine: EngineClient, *, every_s: float = 300.0, ask_timeout_s: float = 5.0
    ) -> None:
        self._engine = engine
        self._every_s = every_s
        self._ask_timeout_s = ask_timeout_s
        self._task: asyncio.Task[None] | None = None
        self._leaked_blocks = 0
        self._audited_epoch = engine.epoch

    @property
    def leaked_blocks(self) -> int:
        """Those of the last audit, whoever wanted it; 0 before the first of this engine."""
        return self._leaked_blocks if self._audited_epoch == self._engine.epoch else 0

    def start(self) -> None:
        """Look from now on."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def audit(self) -> AuditReport:
        """Audit now.

        Raises:
            RequestError: the engine does not answer.
        """
        report = await ask_in_time(self._engine, GetAudit(), self._ask_timeout_s)
        if not isinstance(report, AuditReport):
            raise TypeError(f"the engine answered an audit with {report}")
        self._leaked_blocks, self._audited_epoch = report.leaked_blocks, self._engine.epoch
        return report

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._look()
            except RequestError:
                logger.debug("the engine does not answer; it is audited the next time")
            except Exception:
                logger.exception("the audit met a fault; it goes on")

    async def _look(self) -> None:
        stats = await ask_in_time(self._engine, GetStats(), self._ask_timeout_s)
        if isinstance(stats, EngineStats) and not stats.running and not stats.waiting:
            report = await self.audit()
            if not report.ok:
                logger.error("the audit found: %s", "; ".join(report.violations[:10]))
