"""Policies run wherever Python runs: they import the standard library and each other."""

import ast
import sys
from pathlib import Path

import policies

FOLDER = Path(policies.__file__).parent


def imported_by(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module


def test_policies_import_the_standard_library_alone():
    names = {name.split(".")[0] for path in FOLDER.glob("*.py") for name in imported_by(path)}
    assert "dataclasses" in names
    assert names <= {*sys.stdlib_module_names, "policies"}
