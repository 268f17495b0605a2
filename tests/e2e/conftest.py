from pathlib import Path

import pytest

from benchmarks.server_process import NO_REUSE, running_server

EXTRA = Path(__file__).parents[2] / "build" / "extra"
JS = EXTRA / "js"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.real_model)
            if item.path.name != "test_smoke.py" and not item.get_closest_marker("extra"):
                item.add_marker(pytest.mark.second)


@pytest.fixture(scope="session")
def server(tmp_path_factory, lend_database):
    """A server on each kind of database, shared by all: every test leaves it no active blocks."""
    folder = tmp_path_factory.mktemp("server")
    with (
        lend_database(migrated=False) as db,
        running_server(folder, ["--http-hold-s", "1"], db=db) as running,
    ):
        yield running
        assert "Traceback" not in running.log, running.log


@pytest.fixture(scope="session")
def recomputing_server(tmp_path_factory):
    """A server that keeps nothing between turns: what it says, every other one must say."""
    with running_server(tmp_path_factory.mktemp("recomputing"), NO_REUSE) as running:
        yield running


@pytest.fixture(scope="session")
def node():
    """The node command, with the packages of constraints/js installed."""
    if not (JS / "node_modules" / "openai").is_dir():
        pytest.skip("the JavaScript client is not installed: make test-extra-js")
    return "node"


@pytest.fixture(scope="session")
def agents_python():
    """A Python with OpenAI's Agents SDK."""
    python = EXTRA / "agents" / "bin" / "python"
    if not python.is_file():
        pytest.skip("openai-agents is not installed: make test-extra-agents")
    return str(python)
