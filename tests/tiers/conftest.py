"""Engines are audited here as in tests/engine."""

from tests.engine.conftest import make_engine

__all__ = ["make_engine"]
