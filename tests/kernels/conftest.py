"""The library of this checkout: the one beside the sources when it is newer, else a fresh one."""

import pytest

from engine.model.kernels.build import HERE, LIBRARY_NAME, BuildError, build, find_compiler, sources
from tests.kernels.support import kernels_of


@pytest.fixture(scope="session")
def library_path(tmp_path_factory):
    built = HERE / LIBRARY_NAME
    newest = max(path.stat().st_mtime for path in sources())
    if built.exists() and built.stat().st_mtime > newest:
        return built
    try:
        find_compiler()
    except BuildError:
        pytest.skip("no C compiler")
    path = tmp_path_factory.mktemp("kernels") / LIBRARY_NAME
    build(path)
    return path


@pytest.fixture(scope="session")
def tables(library_path):
    return kernels_of(library_path)


@pytest.fixture(scope="session", params=["portable", "avx2", "avx512"])
def kernels(request, tables):
    if request.param not in tables:
        pytest.skip(f"the processor has no {request.param}")
    return tables[request.param]
