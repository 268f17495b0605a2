"""Policies by name: built in, and brought by installed packages."""

import importlib
import sys
from pathlib import Path

import pytest

from policies.plan import KeepAll, KeepTurns
from policies.registry import (
    ContextPolicyRegistry,
    PluginError,
    installed_context_policies,
)
from policies.sliding_window import SlidingWindow
from policies.toolkit import ParameterError
from policies.views import ConversationView

VIEW = ConversationView(
    system_tokens=10,
    summary_tokens=0,
    turns=[900, 900],
    prompt_tokens=10,
    output_tokens=10,
    limit_tokens=1000,
)


def test_none_never_shortens_a_conversation() -> None:
    assert ContextPolicyRegistry().make("none", {}).plan(VIEW) == KeepAll()


def test_a_policy_is_made_with_its_parameters() -> None:
    made = ContextPolicyRegistry().make("sliding_window", {"max_tokens": 500})
    assert made == SlidingWindow(max_tokens=500)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        (
            "window",
            {},
            r"type must be one of compaction, last_turns, none, sliding_window, .*\(got 'window'\)",
        ),
        (
            "last_turns",
            {"keep_turns": 5},
            r"keep_turns must be one of the parameters turns, trim_to, max_tokens \(got 5\)",
        ),
        ("none", {"turns": 5}, r"turns must be absent: none has no parameters \(got 5\)"),
        ("last_turns", {"turns": "five"}, r"turns must be a whole number .*got 'five'\)"),
    ],
)
def test_what_there_is_not_is_named(
    name: str, parameters: dict[str, int | float | str], words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        ContextPolicyRegistry().make(name, parameters)


PLUGIN = """
from policies.plan import KeepTurns

class FirstAndLast:
    def plan(self, view):
        return KeepTurns(turns=(0, len(view.turns) - 1))

NOT_A_CLASS = 5
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package that brings what `points` say."""

    def install(points: str) -> None:
        (tmp_path / "first_and_last.py").write_text(PLUGIN)
        info = tmp_path / "first_and_last-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: first-and-last\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(f"[sessiond.context_policies]\n{points}\n")
        # not by `syspath_prepend`: it asks whichever pkg_resources other tests have put in place
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
        importlib.invalidate_caches()

    yield install
    sys.modules.pop("first_and_last", None)


def test_an_installed_package_brings_a_policy(plugin) -> None:
    plugin("first_and_last = first_and_last:FirstAndLast")
    registry = installed_context_policies()
    assert "first_and_last" in registry.names
    assert registry.make("first_and_last", {}).plan(VIEW) == KeepTurns(turns=(0, 1))


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ("none = first_and_last:FirstAndLast", "'none' of first-and-last: name must be unused"),
        ("new = first_and_last:Missing", "'new' of first-and-last cannot be loaded: .*Missing"),
        ("new = gone:Policy", "'new' of first-and-last cannot be loaded: No module named 'gone'"),
        ("new = first_and_last:NOT_A_CLASS", "'new' of first-and-last must be a class .*got 5"),
    ],
)
def test_a_package_that_can_not_be_used_is_named(plugin, points: str, words: str) -> None:
    plugin(points)
    with pytest.raises(PluginError, match=words):
        installed_context_policies()
