"""Engines whose memory is audited when the test is over."""

import pytest

from tests.harness.loop import Engine


@pytest.fixture
def make_engine():
    """Builds engines; at the end of the test each is audited, then emptied and audited again."""
    engines: list[Engine] = []

    def make(**settings: object) -> Engine:
        engines.append(Engine(**settings))
        return engines[-1]

    yield make
    for engine in engines:
        engine.check()
        for session in list(engine.loop.memory.contexts):
            engine.close(session)
        engine.check()
        engine.loop.close()
        engine.check()
        assert engine.stats().active_blocks == 0


@pytest.fixture
def engine(make_engine) -> Engine:
    return make_engine()
