"""What idle sockets hold of the gateway: 2,000 of them, 10,000 by `make soak`."""

import pytest

from benchmarks.idle_sockets import measure, open_sockets
from benchmarks.server_process import running_server
from tests.soak import SOAK

pytestmark = pytest.mark.serial

COUNT = 10_000 if SOAK else 2000
MOST_KIB = 45


@pytest.mark.soak
@pytest.mark.timeout(1200 if SOAK else 900)
async def test_an_idle_socket_costs_at_most_45_kib(tmp_path):
    # a server of its own: the heap of one that has worked has room that would not be counted
    with running_server(tmp_path) as server:
        found = await measure(server, COUNT)
        assert open_sockets(server) == 0
        assert "Traceback" not in server.log
    assert found.idle_kib <= MOST_KIB
    assert found.spoken_kib <= MOST_KIB
    assert found.again_kib <= MOST_KIB  # those before them have left nothing behind
