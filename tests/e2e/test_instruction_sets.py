"""A whole server on each instruction set that this processor has: those of lesser machines too."""

import asyncio
import os

import pytest

from benchmarks.load_client import LoadClient
from benchmarks.server_process import running_server
from engine.model.kernels.library import (
    ISA_VARIABLE,
    ISAS,
    LibraryMissingError,
    choose_isa,
    load_library,
)


def best_isa():
    try:
        return choose_isa(load_library())
    except LibraryMissingError:
        return "none"  # torch serves; the library's own tests build one


def use_instruction_set(isa, monkeypatch):
    """Servers that are started now use it; skips where that is not possible, or nothing new."""
    if ISA_VARIABLE in os.environ:
        pytest.skip("the run is on one instruction set")
    if isa == (best := best_isa()):
        pytest.skip("the other tests run on it")
    if best not in ISAS or ISAS.index(isa) > ISAS.index(best):
        pytest.skip(f"the processor has no {isa}")
    monkeypatch.setenv(ISA_VARIABLE, isa)


@pytest.mark.parametrize("isa", ISAS)
def test_a_conversation_on_each_instruction_set(isa, tmp_path, monkeypatch):
    use_instruction_set(isa, monkeypatch)
    with running_server(tmp_path / isa, ["--kv-cache-memory", "64MiB"]) as server:
        assert f"attention native-{isa}" in server.log

        async def converse():
            async with LoadClient(server.url, max_output_tokens=24, temperature=0) as client:
                return [
                    await client.ask("What is the capital of France?"),
                    await client.ask("And of Italy?"),
                ]

        france, italy = asyncio.run(converse())
    # not which words: sums differ in their last bits, and this model often hardly has a preference
    assert {france.end.outcome, italy.end.outcome} <= {"completed", "incomplete"}
    assert italy.end.stats.reused_tokens > france.end.stats.new_tokens
