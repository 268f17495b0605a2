"""Autobahn's test suite: `python -m tests.sockets.autobahn` prints what it finds, by section.

Its cases are run by kosoku, since Autobahn's own runner wants Python 2.7. They want an echo, which
exists in these tests only; on the conversation's socket, which answers otherwise, their verdict on
the closing handshake counts. Compression (sections 12 and 13) is off on purpose.
"""

import asyncio
import logging
from collections import Counter

from kosoku import FailureError, run_fuzzingclient
from rich.console import Console
from rich.table import Table

from tests.api.scripted import ScriptedService, reply
from tests.harness.serving import gateway_of, serving
from tests.sockets.echo import echoing

ECHO_CASES = [f"{section}.*" for section in (1, 2, 3, 4, 5, 6, 7, 9, 10)]
# without those that wait for their own words, and never say what they were to say then
CLOSE_CASES = ["2.*", "3.*", "4.*", "5.*", "7.*"]
CLOSE_CASES += [f"6.{section}.*" for section in (3, 4, 8, 10, *range(12, 22))]
WANT_AN_ECHO = ["7.1.1"]
LARGEST_MESSAGE = 2**24  # of section 9
_AT_ONCE = 8


async def run_on_echo(cases=ECHO_CASES):
    """The results of cases on the echo."""
    async with echoing(max_frame_bytes=LARGEST_MESSAGE) as url:
        return await _run(url, cases, [], lambda result: result.passed)


async def run_on_conversation(cases=CLOSE_CASES):
    """The results of cases on the conversation's socket."""
    async with serving(gateway_of(ScriptedService(lambda _: reply("x")))) as served:
        return await _run(served.ws_url, cases, WANT_AN_ECHO, closes_well)


def closes_well(result):
    """Whether the closing handshake was as the case wants it."""
    return result.behavior_close.value in {"OK", "INFORMATIONAL"}


async def _run(url, cases, exclude, is_right):
    results = await _play(url, cases, exclude, _AT_ONCE)
    failed = [result.case_id for result in results if not is_right(result)]
    if failed:  # a case gives its peer a second, which is short on a busy machine
        again = {result.case_id: result for result in await _play(url, failed, [], 1)}
        results = [again.get(result.case_id, result) for result in results]
    return results


async def _play(url, cases, exclude, at_once):
    try:
        return await run_fuzzingclient(url, cases, exclude, at_once)
    except FailureError as failure:
        return failure.results


def verdict(result):
    """What a case says of the messages, and of the close if that is not as it should be."""
    return (result.behavior if closes_well(result) else result.behavior_close).value


def _show(title, results, verdict_of):
    found = {}
    for result in results:
        section = result.case_id.partition(".")[0]
        found.setdefault(section, Counter())[verdict_of(result)] += 1
    verdicts = sorted(set().union(*found.values()))
    table = Table("section", "cases", *verdicts, title=title)
    for section, counts in found.items():
        table.add_row(section, str(counts.total()), *(str(counts[one]) for one in verdicts))
    total = sum(found.values(), Counter())
    table.add_row("all", str(total.total()), *(str(total[one]) for one in verdicts))
    Console().print(table)


def main():
    """Run all, and print."""
    logging.disable()
    _show("On the echo", asyncio.run(run_on_echo()), verdict)
    closes = asyncio.run(run_on_conversation())
    _show(
        "The close on the conversation's socket", closes, lambda result: result.behavior_close.value
    )


if __name__ == "__main__":
    main()
