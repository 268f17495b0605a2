"""Autobahn's cases; those on large messages and of speed (section 9) by `make soak`."""

import pytest

from tests.soak import SOAK
from tests.sockets.autobahn import ECHO_CASES, closes_well, run_on_conversation, run_on_echo

# Allowed by RFC 6455: a message right before a frame that breaks the protocol is not echoed any
# more (3 to 5), and a frame is looked at when it is whole (6.4.3 and 6.4.4).
LESS_STRICT = {"3.2", "3.3", "3.4", "4.1.3", "4.1.4", "4.1.5", "4.2.3", "4.2.4", "4.2.5", "5.15"}
LESS_STRICT |= {"6.4.3", "6.4.4"}


@pytest.mark.soak
async def test_the_echo_passes_every_case():
    results = await run_on_echo([one for one in ECHO_CASES if SOAK or one != "9.*"])
    assert len(results) == (301 if SOAK else 247)
    assert [result.case_id for result in results if not result.passed] == []
    assert {one.case_id for one in results if one.behavior.value == "NON-STRICT"} <= LESS_STRICT


async def test_the_conversation_closes_as_every_case_wants_it():
    results = await run_on_conversation()
    assert len(results) == 152
    assert [result.case_id for result in results if not closes_well(result)] == []
