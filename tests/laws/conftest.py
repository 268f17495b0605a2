import pytest


def pytest_collection_modifyitems(items):
    """On the native path the first ring holds the laws for drawn tokens, the second for greedy."""
    for item in items:
        native = item.path.name == "test_native_laws.py"
        if native and item.callspec.params["sampling"].temperature == 0:
            item.add_marker(pytest.mark.second)
