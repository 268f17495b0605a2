"""The kernels' tables, one per instruction set."""

import pytest

from tests.kernels.support import kernels_of


@pytest.fixture(scope="session")
def tables(library_path):
    return kernels_of(library_path)


@pytest.fixture(scope="session", params=["portable", "avx2", "avx512"])
def kernels(request, tables):
    if request.param not in tables:
        pytest.skip(f"the processor has no {request.param}")
    return tables[request.param]
