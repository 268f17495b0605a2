"""Random operations on engines that swap all the time, and die and come back."""

from collections.abc import Callable
from pathlib import Path

from engine.ids import SessionId
from engine.ipc.messages import Sampling, SetContext
from engine.kv.tiers.store import Blocks
from engine.kv.tiers.tiers import Tiers
from tests.harness.loop import Engine
from tests.laws.backend import Backend, block_bytes
from tests.laws.random_operations import RandomOperations
from tests.tiers.support import LateMover, tiers_of

_HOST_SLOTS = 6
_DISK_SLOTS = 40


class TieredOperations(RandomOperations):
    """Both tiers are small, and moves take a random time. Seeds differ in which tiers there are."""

    def __init__(
        self,
        backend: Backend,
        sampling: Sampling,
        seed: int,
        *,
        drafting: bool = False,
        folder: Path,
    ) -> None:
        self.folder = folder
        self.epoch = 0
        self.restored_tokens = 0
        self.restarts = 0
        super().__init__(backend, sampling, seed, drafting=drafting)

    def new_engine(self, **settings: object) -> Engine:
        self.epoch += 1
        self.mover = LateMover(seed=1000 * self.seed + self.epoch)
        size = block_bytes(self.backend.runner(1, self.block_size))
        host = (0, _HOST_SLOTS)[self.seed % 2]
        tiers = self.tiers(size, host=host, disk=_DISK_SLOTS, folder=self.folder)
        return super().new_engine(tiers=tiers, **settings)

    def tiers(self, size: int, **slots: object) -> Callable[[Blocks], Tiers]:
        return tiers_of(self.mover, size, **slots)

    def choices(self) -> dict[Callable[[], None], int]:
        return {**super().choices(), self.park: 4, self.restart: 1, self.kill: 1}

    def park(self) -> None:
        self.engine.park(self.random.choice(sorted(self.sessions or {"nobody"})))

    def restart(self) -> None:
        """The engine stops, and another begins with what was on disk."""
        self.engine.loop.close()
        self.begin_again()

    def kill(self) -> None:
        """The same without time to write anything: moves that had begun are lost."""
        for transfers in self.mover.transfers.values():
            transfers.clear()
        for tier in self.engine.loop.memory.kv_transfer.tiers:
            tier.store.close()
        self.begin_again()

    def begin_again(self) -> None:
        self.restored_tokens += self.engine.stats().restored_tokens_total
        self.restarts += 1
        self.engine = self.new_engine()
        for name, session in self.sessions.items():
            session.turn = None
            self.engine.loop.handle(
                SetContext(
                    session=SessionId(name),
                    salt=b"one tenant",
                    ids=session.history,
                    computed=len(session.history),
                    edits=tuple(session.edits),
                )
            )

    def check_coverage(self, operations: int) -> None:
        self.restored_tokens += self.engine.stats().restored_tokens_total
        if operations >= 1000:
            assert self.restored_tokens > 0
            assert self.restarts > 1
            assert self.shifted_turns > 0
