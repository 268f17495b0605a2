import ast

import pytest

from tests.mutants.drawing import Mutant, draw
from tests.mutants.modules import MODULES, SECOND_RING, UNTRACED
from tests.mutants.reach import ROOT

SOURCE = '''"""A module; 1 < 2 in prose is left alone."""


def least(rows, most):
    """At most `most` - 1 rows."""
    if not rows or len(rows) < most:
        return rows[:1]
    rows.sort()
    return rows[: most - 1]
'''


def test_each_mutant_compiles_and_differs_in_code_alone():
    drawn = draw("a.py", SOURCE, 100, 1)
    assert len({one.line for one in drawn}) == len(drawn) == 4
    for one in drawn:
        changed = one.applied(SOURCE)
        assert ast.get_docstring(ast.parse(changed)) == ast.get_docstring(ast.parse(SOURCE))
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(SOURCE))


def test_a_seed_gives_the_same_mutants_and_another_gives_others():
    assert draw("a.py", SOURCE, 3, 1) == draw("a.py", SOURCE, 3, 1)
    assert len({tuple(draw("a.py", SOURCE, 2, seed)) for seed in range(9)}) > 1


def test_a_source_that_has_changed_is_refused():
    (one, *_) = draw("a.py", SOURCE, 1, 1)
    with pytest.raises(ValueError, match=r"a\.py:\d+ must hold"):
        one.applied("\n" * 9)


def test_c_is_mutated_in_statements_only():
    source = "/* a + b; */\nint f(int a) {\n    return a + 1;\n}\n"
    assert draw("a.c", source, 9, 1) == [
        Mutant(module="a.c", line=3, column=12, before=" + ", after=" - ")
    ]


@pytest.mark.parametrize("name", MODULES)
def test_every_named_module_has_mutants_and_tests(name):
    module = MODULES[name]
    assert len(draw(module, (ROOT / module).read_text(encoding="utf-8"), 4, 11)) == 4
    assert all((ROOT / path).exists() for path in (*SECOND_RING[name], *UNTRACED.get(module, ())))
