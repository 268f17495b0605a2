"""Draws mutants: one small change of a module's source each. Pure; the seed decides.

Operators are those of DeMillo, Lipton and Sayward 1978 that compile in any place: a comparison, an
arithmetic or logical operator, a number, a condition or a statement is replaced.
"""

import ast
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
}
C_OPERATORS = {" + ": " - ", " - ": " + ", " * ": " + ", " < ": " <= ", " == ": " != ", "++": "--"}
_C_CODE = re.compile(r"^\s+[^*/\s#].*;|^\s+for \(")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`before` at this line (from 1) and column of the module becomes `after`."""

    module: str
    line: int
    column: int
    before: str
    after: str

    def applied(self, source: str) -> str:
        """The source with the fault.

        Raises:
            ValueError: the source does not hold `before` there.
        """
        lines = source.splitlines(keepends=True)
        at = sum(map(len, lines[: self.line - 1])) + self.column
        if source[at : at + len(self.before)] != self.before:
            raise ValueError(f"{self.module}:{self.line} must hold {self.before!r}")
        return source[:at] + self.after + source[at + len(self.before) :]

    def __str__(self) -> str:
        shown = (" ".join(text.split())[:60] for text in (self.before, self.after))
        return f"{self.module}:{self.line} `{'` -> `'.join(shown)}`"


def draw(module: str, source: str, count: int, seed: int) -> list[Mutant]:
    """So many mutants of a module, at different lines, in the order of the draw."""
    found = _in_c(module, source) if module.endswith(".c") else _in_python(module, source)
    candidates = sorted(found, key=lambda one: (one.line, one.column, one.after))
    random.Random(f"{seed} {module}").shuffle(candidates)
    by_line = {one.line: one for one in reversed(candidates)}
    return [one for one in candidates if by_line[one.line] is one][:count]


def _in_c(module: str, source: str) -> Iterator[Mutant]:
    for number, line in enumerate(source.splitlines(), 1):
        if _C_CODE.match(line):
            for before, after in C_OPERATORS.items():
                for found in re.finditer(re.escape(before), line):
                    yield Mutant(
                        module=module,
                        line=number,
                        column=found.start(),
                        before=before,
                        after=after,
                    )


def _in_python(module: str, source: str) -> Iterator[Mutant]:
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                for node in ast.walk(statement):
                    for after in _replacements(node):
                        before = ast.get_source_segment(source, node)
                        if before is not None and before.isascii():
                            yield Mutant(
                                module=module,
                                line=node.lineno,
                                column=node.col_offset,
                                before=before,
                                after=after,
                            )


def _replacements(node: ast.AST) -> Iterator[str]:
    """Other code for a node."""
    match node:
        case ast.Compare(left=left, ops=[op, *rest], comparators=right) if type(op) in COMPARISONS:
            ops = [COMPARISONS[type(op)](), *rest]
            yield ast.unparse(ast.Compare(left=left, ops=ops, comparators=right))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            yield f"({ast.unparse(ast.BinOp(left=left, op=ARITHMETIC[type(op)](), right=right))})"
        case ast.BoolOp(op=op, values=values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield f"({ast.unparse(ast.BoolOp(op=other, values=values))})"
        case ast.Constant(value=bool(value)):
            yield repr(not value)
        case ast.Constant(value=int(value)):
            yield repr(value + 1)
        case ast.IfExp(body=body, orelse=orelse):
            yield f"({ast.unparse(orelse)} if True else {ast.unparse(body)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield f"({ast.unparse(operand)})"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield "pass"
