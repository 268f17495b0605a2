"""The laws on the fake model: what the engine's memory and scheduling owe to any model."""

from tests.laws.absolute_laws import AbsoluteLaws
from tests.laws.backend import AbsoluteFakeBackend, FakeBackend
from tests.laws.engine_laws import EngineLaws


class TestFakeLaws(EngineLaws):
    backend = FakeBackend()


class TestFakeDraftingLaws(TestFakeLaws):
    """With drafts, true and untrue, in every step that draws."""

    drafting = True


class TestAbsoluteFakeLaws(AbsoluteLaws, EngineLaws):
    """K lies at its position, in pages without holes: edits move KV."""

    backend = AbsoluteFakeBackend()


class TestAbsoluteFakeDraftingLaws(AbsoluteLaws):
    backend = AbsoluteFakeBackend()
    drafting = True
