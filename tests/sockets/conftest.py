from tests.gateway.conftest import stack

__all__ = ["stack"]
