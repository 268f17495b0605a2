"""Nothing rises in a server with the default model: 500 turns under `make soak`, 60 in CI."""

import time

import pytest

from sessiond.store.database import READERS
from tests.soak import SOAK
from tests.soaks.curve import KIB
from tests.soaks.real import soak_server

pytestmark = [
    pytest.mark.serial,
    pytest.mark.second,
    pytest.mark.soak,
    pytest.mark.e2e,
    pytest.mark.real_model,
    pytest.mark.timeout(3600 if SOAK else 900),
]

TURNS = 500 if SOAK else 60
SEED = time.time_ns() if SOAK else 1
HOST_TIER_BYTES = 8 * 2**20
# beside those of whoever asks: connections are made when as many are wanted at once
DATABASE_FILES = 2 * READERS


async def test_a_server_with_the_default_model_holds_no_more_after_many_turns(tmp_path):
    engine, gateway, _ = await soak_server(tmp_path / "server", TURNS, SEED)
    for curve in (engine, gateway):
        assert curve.spread("free_blocks") == 0, (SEED, str(curve))
        assert max(one.host_bytes for one in curve.samples) <= HOST_TIER_BYTES
    assert engine.spread("files") == 0, (SEED, str(engine))
    assert gateway.spread("files") <= 2 + DATABASE_FILES, (SEED, str(gateway))
    assert gateway.spread("tasks") <= 4, (SEED, str(gateway))
    if SOAK:
        assert engine.slope("rss_bytes") < KIB, (SEED, str(engine))
