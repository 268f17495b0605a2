from tests.api.conftest import stack

__all__ = ["stack"]
