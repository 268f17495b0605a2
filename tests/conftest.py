"""What holds for the whole suite."""

import os

import pytest
from hypothesis import HealthCheck, settings

from engine.model.kernels.build import HERE, LIBRARY_NAME, build, sources
from engine.system.c_compiler import BuildError, find_compiler
from tests.run_folder import locked, run_folder
from tests.soak import SOAK

pytest_plugins = ["tests.rings", "tests.databases", "tests.sql_texts"]

# Before torch is imported, as the engine's process does: threads that spin at a barrier collapse
# when another process wants a core.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Before Triton is imported: without a GPU its kernels are interpreted. With one, 0 has the same
# tests run what is compiled.
os.environ.setdefault("TRITON_INTERPRET", "1")


# Deadline and health check measure the machine, not the code. What CI plays is always the same.
settings.register_profile(
    "any-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not SOAK,
    database=None,
)
settings.load_profile("any-machine")


@pytest.fixture(scope="session")
def library_path(tmp_path_factory):
    """The library of this checkout: the one beside the sources when newer, else a fresh one."""
    built = HERE / LIBRARY_NAME
    newest = max(path.stat().st_mtime for path in sources())
    if built.exists() and built.stat().st_mtime > newest:
        return built
    try:
        find_compiler()
    except BuildError:
        pytest.skip("no C compiler")
    path = run_folder() / LIBRARY_NAME
    with locked(path):
        if not path.exists():
            build(path)
    return path
