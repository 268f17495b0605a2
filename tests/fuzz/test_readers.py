"""Readers of foreign bytes read, or refuse with the error that they promise. More: `tests.fuzz`."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.__main__ import at_random, by_coverage
from tests.fuzz.structured import STRUCTURED, as_bytes
from tests.fuzz.targets import TARGETS
from tests.soak import SOAK

RUNS = 2000 if SOAK else 200
SEED = 20260701


@pytest.mark.parametrize("name", STRUCTURED)
@settings(
    max_examples=RUNS, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_requests_that_are_nearly_right_are_read_or_refused_by_name(name, data):
    TARGETS[name].judge(as_bytes(data.draw(STRUCTURED[name])))


@pytest.mark.parametrize("name", TARGETS)
def test_bytes_that_are_mutated_are_read_or_refused(name):
    assert at_random(name, RUNS, SEED) > RUNS


def unforgiving(_, call):
    call()


@pytest.mark.parametrize("name", TARGETS)
def test_every_seed_is_right(name):
    """Or mutations of it would be refused for the same reason always."""
    refused = {"gguf-spec", "headers"}  # a vocabulary alone is no model; headers are of many kinds
    if name not in refused:
        target = TARGETS[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.fuzz.targets.error_of", unforgiving)
            for data in target.seeds:
                if name != "small-bodies":
                    target.judge(data)


@pytest.mark.soak
@pytest.mark.parametrize("name", TARGETS)
def test_inputs_that_coverage_guides_are_read_or_refused(name):
    pytest.importorskip("atheris", reason="the extra [fuzz] is not installed")
    assert by_coverage(name, 20_000 if SOAK else 2_000, SEED) >= 2_000


def test_the_command_counts_what_it_tried():
    command = [sys.executable, "-m", "tests.fuzz", "to-engine", "--runs", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "to-engine" in done.stdout
    assert "nothing found" in done.stdout
