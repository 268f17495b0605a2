import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.server_process import NO_REUSE, running_server

JS = Path(__file__).parent / "js"


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.real_model)


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
    """The node command, with the packages of js/package.json installed."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not installed: the JavaScript client is not tested")
    if not (JS / "node_modules" / "openai").is_dir():
        command = ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=JS, check=True, timeout=240, capture_output=True)
    return "node"
