"""What the suites of laws share: an engine on the backend's model, and short words."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pytest

from engine.ids import TurnId
from engine.ipc.messages import Sampling
from tests.harness.loop import Engine
from tests.laws.backend import Backend
from tests.laws.drafting import OracleDrafts

SAMPLINGS = [
    pytest.param(Sampling(temperature=0), id="greedy"),
    pytest.param(
        Sampling(temperature=0.8, seed=7, repetition_penalty=1.2, presence_penalty=0.3), id="seeded"
    ),
]


@pytest.mark.parametrize("sampling", SAMPLINGS)
class LawSuite:
    backend: ClassVar[Backend]
    drafting: ClassVar = False  # with drafts in every step that draws

    @staticmethod
    def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
        """pytest's hook: hold a law that names a block size at each that the backend has."""
        if "block_size" in metafunc.fixturenames:
            metafunc.parametrize("block_size", metafunc.cls.backend.block_sizes)

    @contextmanager
    def engine(self, **settings: object) -> Iterator[Engine]:
        engine = Engine(runner=self.backend.runner, **settings)
        if self.drafting:
            engine.draft_with(OracleDrafts(self.backend))
        yield engine
        engine.check()

    def prompt(self, length: int, seed: int = 0) -> list[int]:
        draw = random.Random(f"{length} {seed}")
        return [draw.randrange(self.backend.vocab_size) for _ in range(length)]

    def submit(
        self,
        engine: Engine,
        session: str,
        ids: list[int],
        sampling: Sampling,
        *,
        stop: bool = True,
        draft_ids: Sequence[int] = (),
        output: int = 20,
    ) -> TurnId:
        return engine.submit(
            session,
            ids,
            sampling=sampling,
            stop_ids=[self.backend.stop_id] if stop else [],
            close_ids=[1, 2],
            draft_ids=list(draft_ids),
            max_output_tokens=output,
        )

    def turn(
        self,
        engine: Engine,
        session: str,
        ids: list[int],
        sampling: Sampling,
        *,
        draft_ids: Sequence[int] = (),
    ) -> list[int]:
        turn = self.submit(engine, session, ids, sampling, draft_ids=draft_ids)
        engine.run()
        return engine.kept(turn)

    def expected(
        self, ids: list[int], sampling: Sampling, *, stop: bool = True, output: int = 20
    ) -> list[int]:
        reply = self.backend.reply(
            ids,
            sampling=sampling,
            max_output_tokens=output,
            stop_ids=[self.backend.stop_id] if stop else [],
        )
        if stop and reply[-1] == self.backend.stop_id:
            reply.pop()
        return [*reply, 1, 2]
