"""The rooms of the house: sizes of modules, their importers, names of classes."""

import ast
from collections import defaultdict
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("sessiond", "engine", "policies", "migrations", "loadtest")
FEW_LINES, RULE_LINES, MOST_LINES = 60, 500, 800

SMALL_FOR_A_REASON = {
    "engine.kv.free_library_build": "setup.py runs it before anything is installed",
    "engine.model.attention.flash.declaration": "read where flash-attn is not installed",
    "engine.model.attention.flash.library": "imports flash-attn; tests of its importer replace it",
    "loadtest.options": "pure; its importer needs gevent's patches",
    "policies.last_turns": "one file per policy",
    "policies.priority": "one file per policy",
    "policies.token_budget": "one file per policy",
    "policies.ttl": "one file per policy",
}
LONG_FOR_A_REASON: dict[str, str] = {}


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph(*PACKAGES, cache_dir=None)


def modules():
    """Name and path of each module of the product."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            if path.name != "__init__.py" and "versions" not in path.parts:
                yield name, path


def lines_of(path):
    return len(path.read_text(encoding="utf-8").splitlines())


def test_modules_are_of_a_size_to_be_read():
    sizes = {name: lines_of(path) for name, path in modules()}
    assert {name for name, lines in sizes.items() if lines > MOST_LINES} == set()
    long = {name for name, lines in sizes.items() if lines > RULE_LINES}
    assert long == set(LONG_FOR_A_REASON)


def test_a_small_module_with_one_importer_beside_it_has_a_reason(graph):
    alone = {
        name
        for name, path in modules()
        if lines_of(path) < FEW_LINES
        and [each.rpartition(".")[0] for each in graph.find_modules_that_directly_import(name)]
        == [name.rpartition(".")[0]]
    }
    assert alone == set(SMALL_FOR_A_REASON)


def test_no_class_name_stands_twice():
    places = defaultdict(list)
    for name, path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_call_reaches_through_two_objects():
    """`self.memory.pool.free(...)` knows what memory is made of: ask `memory`, or hold `pool`."""
    chains = [
        f"{name}:{call.lineno} {ast.unparse(call.func)}"
        for name, path in modules()
        if name.partition(".")[0] in ("sessiond", "engine", "policies")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and links(call.func) > 2
    ]
    assert chains == []


def links(called):
    """Attributes from `self` to what is called: 1 for `self.run()`; 0 for other calls."""
    names = 0
    while isinstance(called, ast.Attribute):
        called, names = called.value, names + 1
    return names if isinstance(called, ast.Name) and called.id == "self" else 0
