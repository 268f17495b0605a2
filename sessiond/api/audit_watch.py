"""Audits the engine periodically, while no turn needs it. Asyncio only."""

import asyncio
import logging

from engine.ipc.client import EngineClient
from engine.ipc.queries import AuditReport, EngineStats, GetAudit, GetStats
from sessiond.errors import RequestError
from sessiond.sessions.queries import ask_in_time

logger = logging.getLogger(__name__)


class AuditWatch:
    """Runs an audit every `every_s`. It visits every block and session, too much for a scrape."""

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
        """Leaked blocks in the last audit of this engine, 0 before the first one."""
        return self._leaked_blocks if self._audited_epoch == self._engine.epoch else 0

    def start(self) -> None:
        """Start the periodic audit."""
        self._task = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Stop the periodic audit."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def audit(self) -> AuditReport:
        """Run an audit now.

        Raises:
            RequestError: the engine does not answer.
        """
        report = await ask_in_time(self._engine, GetAudit(), self._ask_timeout_s)
        if not isinstance(report, AuditReport):
            raise TypeError(f"audit report must be an AuditReport (got {report})")
        self._leaked_blocks, self._audited_epoch = report.leaked_blocks, self._engine.epoch
        return report

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._audit_if_idle()
            except RequestError:
                logger.debug(
                    "the engine does not answer; the audit is retried at the next interval"
                )
            except Exception:
                logger.exception("the audit failed; it is retried at the next interval")

    async def _audit_if_idle(self) -> None:
        stats = await ask_in_time(self._engine, GetStats(), self._ask_timeout_s)
        if isinstance(stats, EngineStats) and not stats.running and not stats.waiting:
            report = await self.audit()
            if not report.ok:
                logger.error("the audit found violations: %s", "; ".join(report.violations[:10]))
