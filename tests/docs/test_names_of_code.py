"""Modules, classes and functions that the architecture page and the READMEs name exist."""

import ast
import builtins
import re
from collections import defaultdict

import pytest

from tests.docs.blocks import ROOT

PACKAGES = ("sessiond", "engine", "policies", "migrations", "loadtest")
FOLDERS = (*PACKAGES, "benchmarks", "tests", "docs", "deploy")
READMES = sorted(
    str(path.relative_to(ROOT))
    for folder in (*PACKAGES, "benchmarks", "tests")
    for path in (ROOT / folder).rglob("README.md")
    if not {"data", "node_modules"} & set(path.parts)
)
PAGES = ["docs/architecture.md", *READMES]

_FILE = re.compile(r"[\w./-]+\.(?:py|c|h)")
_MEMBER = re.compile(r"([A-Z]\w*)\.(\w+)")
_FUNCTION = re.compile(r"(\w+)\(\)")
_FOLDER = re.compile(r"[a-z_]+(?:/[a-z_]+)+/?|[a-z_]+/")
_CLASS = re.compile(r"[A-Z][a-z]\w*")


class Names(ast.NodeVisitor):
    """What the code defines: functions, classes and module-level values, members by class."""

    def __init__(self):
        self.functions = set()
        self.tops = set()
        self.members = defaultdict(set)
        self._classes = []

    def visit_ClassDef(self, node):
        self.tops.add(node.name)
        self._classes.append(node.name)
        self.generic_visit(node)
        self._classes.pop()

    def visit_FunctionDef(self, node):
        self.functions.add(node.name)
        if self._classes:
            self.members[self._classes[-1]].add(node.name)
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Name(self, node):
        if isinstance(node.ctx, ast.Store):
            (self.members[self._classes[-1]] if self._classes else self.tops).add(node.id)

    def visit_Attribute(self, node):
        if isinstance(node.ctx, ast.Store) and self._classes:
            self.members[self._classes[-1]].add(node.attr)
        self.generic_visit(node)


@pytest.fixture(scope="module")
def names():
    found = Names()
    for package in (*PACKAGES, "benchmarks", "tests"):
        for path in (ROOT / package).rglob("*.py"):
            found.visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


@pytest.fixture(scope="module")
def files():
    there = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return [f"/{path.relative_to(ROOT)}" for path in there] + ["/setup.py"]


def unknown_in(text, names, files):
    """The names in code font that the code does not have."""
    for token in sorted(set(re.findall(r"`([^`\n]+)`", text))):
        if _FILE.fullmatch(token):
            known = any(file.endswith(f"/{token}") for file in files)
        elif _FOLDER.fullmatch(token):
            known = any(f"/{token.rstrip('/')}/" in file for file in files)
        elif match := _MEMBER.fullmatch(token):
            known = match[2] in names.members[match[1]]
        elif match := _FUNCTION.fullmatch(token):
            known = match[1] in names.functions
        elif _CLASS.fullmatch(token):
            known = token in names.tops or hasattr(builtins, token)
        else:
            continue
        if not known:
            yield token


def test_there_are_pages_to_check():
    assert {"engine/kv/README.md", "sessiond/sessions/README.md"} <= set(READMES)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_only_what_exists(page, names, files):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert list(unknown_in(text, names, files)) == []


@pytest.mark.parametrize(
    "token", ["kv/no_such.py", "kv/no_such", "Executor.no_such", "no_such()", "NoSuch"]
)
def test_a_name_that_the_code_lacks_is_found(token, names, files):
    assert list(unknown_in(f"See `{token}`.", names, files)) == [token]


@pytest.mark.parametrize(
    "token",
    [
        "kv/tiers",
        "kv/executor.py",
        "free_blocks.c",
        "Executor.fork",
        "Slot.context",
        "draw()",
        "Edit",
    ],
)
def test_a_name_that_the_code_has_passes(token, names, files):
    assert list(unknown_in(f"See `{token}`.", names, files)) == []
