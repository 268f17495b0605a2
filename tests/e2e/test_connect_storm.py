"""5,000 clients a minute come and go: 300 of them, a whole minute by `make soak`."""

import pytest

from benchmarks.connect_storm import storm
from benchmarks.server_process import running_server
from tests.soak import SOAK

pytestmark = pytest.mark.serial

COUNT = 5000 if SOAK else 300
PER_MINUTE = 5000


@pytest.mark.soak
async def test_clients_that_come_and_go_are_all_served_and_leave_nothing(tmp_path):
    with running_server(tmp_path) as server:
        found = await storm(server, COUNT, PER_MINUTE)
        assert "Traceback" not in server.log
    assert (found.refused, found.unanswered) == (0, 0)
    assert found.turns > 0
    assert found.cut == 0
    assert found.files_after < found.files_before + 20  # connections to the database
    assert found.rss_after - found.rss_before < 16 * 2**20  # a socket each would be 175 MiB
