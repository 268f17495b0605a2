"""The laws on the fake model: what the engine's memory and scheduling owe to any model."""

from tests.laws.backend import FakeBackend
from tests.laws.engine_laws import EngineLaws


class TestFakeLaws(EngineLaws):
    backend = FakeBackend()


class TestFakeDraftingLaws(TestFakeLaws):
    """With drafts, true and untrue, in every step that draws."""

    drafting = True
