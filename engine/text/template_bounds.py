"""A sandbox for chat templates that bounds steps and the size of every value.

Model files are not trusted, and Jinja's sandbox only keeps a template away from Python's internals:
`{{ 'a' * 10**10 }}` and nested loops pass it. Here everything that can grow or repeat takes steps
from a budget, and only listed functions may be called. Deterministic: no clock.
"""

import json
import operator
import threading
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from datetime import datetime
from functools import wraps
from itertools import islice
from types import BuiltinMethodType, MethodType
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.environment import Template
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARS: Final = 128 * 1024
MAX_STEPS: Final = 50_000
MAX_TEXT_CHARS: Final = 64 * 1024
MAX_ITEMS: Final = 4096
MAX_INT: Final = 2**63
_CHARS_PER_STEP = 64
_ATTRIBUTES = "_Namespace__attrs"
_MAX_DEPTH = 150
_MAX_LOOPS = 10
_MAX_INDENT = 16
_MAX_TIME_FORM = 100

_FILTERS = frozenset({
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr",
    "reverse", "safe", "select", "selectattr", "sort", "string", "title", "trim",
    "unique", "upper",
})  # fmt: skip
_METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset({
        "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
        "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "isupper", "join", "lower",
        "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rpartition",
        "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "title", "upper",
    }),
    dict: frozenset({"get", "items", "keys", "values"}),
    list: frozenset({"count", "index"}),
    tuple: frozenset({"count", "index"}),
}  # fmt: skip
_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "*": operator.mul,
    "**": operator.pow,
    "+": operator.add,
    "-": operator.sub,
    "%": operator.mod,
}


class TemplateTooLargeError(jinja2.TemplateError):
    """A template exceeds its step or size limits."""


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles templates with limited time and memory. Any thread may render.

    `functions`: functions that a template may call besides `range`, `dict`, `namespace` and
    `strftime_now`.
    """

    intercepted_binops = frozenset({"*", "**", "+", "-", "%"})

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols"],
            finalize=self.shown,
        )
        self._spent = threading.local()
        self.filters = {name: self._bounded(self.filters[name]) for name in _FILTERS} | {
            "indent": self._indent,
            "join": self._join,
            "replace": self._replace,
            "tojson": self._to_json,
        }
        own = {"range": self._range, "strftime_now": self._strftime_now}
        self.globals = {**own, "dict": dict, "namespace": Namespace, **functions}
        self._callable = [self.spend, self.joined, self.walked, self.items, *self.globals.values()]

    def compiled(self, source: str) -> Template:
        """Compile a template.

        Raises:
            TemplateTooLargeError: it is longer than `MAX_SOURCE_CHARS`.
            Exception: any error in the template.
        """
        if len(source) > MAX_SOURCE_CHARS:
            raise TemplateTooLargeError(
                f"template source must be at most {MAX_SOURCE_CHARS} characters (got {len(source)})"
            )
        self._spent.steps = 0  # constants are computed while compiling
        parsed = self.parse(source)
        _check_depth(parsed)
        tree = _Metering().visit(parsed)
        tree.set_environment(self)
        return self.from_string(tree)

    def render(self, template: Template, now: datetime, **values: Any) -> str:
        """Render with a fresh budget, at the time `now`.

        Raises:
            TemplateTooLargeError: the budget is spent, or a value is too large.
            Exception: any error of the template.
        """
        self._spent.steps, self._spent.now = 0, now
        return template.render(**values)

    # --- called by compiled templates ------------------------------------------------------------

    def spend(self, steps: int = 1) -> None:
        """Take steps from the budget."""
        spent = getattr(self._spent, "steps", 0) + steps
        self._spent.steps = spent
        if spent > MAX_STEPS:
            raise TemplateTooLargeError(f"more than {MAX_STEPS} steps")

    def shown(self, value: Any) -> Any:
        """Check a value that is about to become text."""
        return self.walked(value)

    def joined(self, *parts: Any) -> str:
        """Jinja's `~`."""
        return self._join(parts)

    def items(self, value: Iterable[Any]) -> list[Any]:
        """The items of a loop, as a list of limited size."""
        return self._sized(value)

    def walked(self, value: Any) -> Any:
        """Return the value, after taking steps for each of its parts."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            self.spend()
            match one:
                case str():
                    if len(one) > MAX_TEXT_CHARS:
                        self._refuse(f"a text of {len(one)} characters", MAX_TEXT_CHARS)
                    self.spend(len(one) // _CHARS_PER_STEP)
                case bool():
                    pass
                case int():
                    if abs(one) >= MAX_INT:
                        self._refuse("a large number", MAX_INT)
                case Mapping():
                    waiting += self._sized([*one.keys(), *one.values()])
                case list() | tuple() | KeysView() | ValuesView() | ItemsView():
                    waiting += self._sized(one)
                case Namespace():
                    waiting += self._sized(getattr(one, _ATTRIBUTES).values())
                case _:
                    pass
        return value

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a listed function or method.

        Raises:
            SecurityError: it is not listed.
        """
        if called == self.spend:
            return self.spend(*args)
        self.spend()
        if isinstance(called, BuiltinMethodType):
            given = {name: one for name, one in kwargs.items() if not name.startswith("_")}
            return self.walked(self._method(called, *args, **given))  # without jinja's own
        own_kind = isinstance(called, Macro | BlockReference | LoopContext)
        of_loop = isinstance(called, MethodType) and isinstance(called.__self__, LoopContext)
        if not (own_kind or of_loop or any(called == one for one in self._callable)):
            if isinstance(called, jinja2.Undefined):
                called()  # says which name is not defined
            raise SecurityError(f"{called!r} may not be called by a chat template")
        return self.walked(super().call(context, called, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ARG002 -- jinja's signature
        """Apply an operator, if the size of the result is limited."""
        sizes = [len(one) for one in (left, right) if isinstance(one, str | list | tuple)]
        match operator:
            case "*" if sizes:
                count = right if isinstance(right, int) else left
                if not isinstance(count, int) or sizes[0] * max(count, 0) > MAX_TEXT_CHARS:
                    self._refuse(f"{sizes[0]} times {count!r} characters or items", MAX_TEXT_CHARS)
            case "**" if not (_is_small(left) and _is_small(right)):
                self._refuse("a power of such numbers", 64)
            case "%" if sizes:
                raise SecurityError("texts may not be formatted by a chat template")
            case _:
                pass
        return self.walked(_OPERATORS[operator](left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` is refused: it pads to any width."""
        return None if super().wrap_str_format(value) is None else _no_format

    # --- guarded methods and filters -------------------------------------------------------------

    def _method(self, method: BuiltinMethodType, *args: Any, **kwargs: Any) -> Any:
        owner, name = method.__self__, method.__name__
        allowed = next((names for kind, names in _METHODS.items() if isinstance(owner, kind)), ())
        if name not in allowed:
            raise SecurityError(f"{type(owner).__name__}.{name} may not be called by a template")
        if isinstance(owner, str):
            self.spend(len(owner) // _CHARS_PER_STEP)
            if name == "replace":
                return self._replace(owner, *args)
            if name == "join":
                (values,) = args
                return self._join(values, owner)
        return method(*args, **kwargs)

    def _bounded(self, apply: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that takes steps for its arguments and its result, and is not lazy."""

        @wraps(apply)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            read = sum(len(one) for one in args if isinstance(one, str | list | tuple | dict))
            self.spend(1 + read // _CHARS_PER_STEP)
            result = apply(*args, **kwargs)
            is_lazy = isinstance(result, Iterator)
            return self.walked(self._sized(result) if is_lazy else result)

        return bounded

    def _range(self, *bounds: int) -> list[int]:
        return self._sized(range(*bounds))

    def _strftime_now(self, form: str) -> str:
        if len(form) > _MAX_TIME_FORM:
            self._refuse(f"a time format of {len(form)} characters", _MAX_TIME_FORM)
        now: datetime = self._spent.now
        return now.strftime(form)

    def _join(self, values: Any, d: Any = "", attribute: Any = None) -> str:
        """As the filter and as `str.join`."""
        if attribute is not None:
            raise SecurityError("join must have no attribute in a chat template")
        parts = [str(self.walked(one)) for one in self._sized(values)]
        between = str(d)
        size = sum(map(len, parts)) + len(between) * len(parts)
        if size > MAX_TEXT_CHARS:
            self._refuse(f"a text of {size} characters", MAX_TEXT_CHARS)
        return between.join(parts)

    def _replace(self, text: Any, old: Any, new: Any, count: Any = None) -> str:
        """As the filter and as `str.replace`."""
        whole, old, new = (str(self.walked(one)) for one in (text, old, new))
        found = whole.count(old)
        size = len(whole) + found * max(len(new) - len(old), 0)
        if size > MAX_TEXT_CHARS:
            self._refuse(f"a text of {size} characters", MAX_TEXT_CHARS)
        return whole.replace(old, new, -1 if count is None else count)

    def _indent(self, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> str:
        lines = self._sized(str(self.walked(text)).splitlines(keepends=True))
        pad = _indent_of(width)
        return self._join(
            [
                pad + line if (line.strip() or blank) and (index or first) else line
                for index, line in enumerate(lines)
            ]
        )

    def _to_json(self, value: Any, indent: int | None = None) -> str:
        pad = None if indent is None else len(_indent_of(indent))
        return json.dumps(self.walked(value), ensure_ascii=False, indent=pad)

    def _sized(self, values: Iterable[Any]) -> list[Any]:
        found = list(islice(values, MAX_ITEMS + 1))
        if len(found) > MAX_ITEMS:
            self._refuse("a list", MAX_ITEMS)
        self.spend(len(found))
        return found

    @staticmethod
    def _refuse(what: str, most: int) -> NoReturn:
        raise TemplateTooLargeError(f"{what} exceeds the limit of {most}")


class _Metering(NodeTransformer):
    """Makes a template take steps for each loop iteration, macro call and literal list.

    An iteration also takes steps for the literal text in it.
    """

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 -- jinja's names
        self.generic_visit(node)
        node.iter = _call("items", node.iter)
        node.body = [_spending(node), *node.body]
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Node:  # noqa: N802
        return self._metered(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _call("joined", *node.nodes)

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _call("walked", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _call("walked", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _call("walked", node) if node.ctx == "load" else node

    def _metered(self, node: nodes.Macro | nodes.CallBlock | nodes.Block) -> nodes.Node:
        self.generic_visit(node)
        node.body = [_spending(node), *node.body]
        return node


def _call(name: str, *arguments: nodes.Node) -> nodes.Call:
    attribute = nodes.EnvironmentAttribute(name)
    return nodes.Call(attribute, list(arguments), [], None, None, lineno=1)


def _spending(node: nodes.Node) -> nodes.ExprStmt:
    written = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
    steps = nodes.Const(1 + written // _CHARS_PER_STEP)
    return nodes.ExprStmt(_call("spend", steps), lineno=1)


def _check_depth(tree: nodes.Template) -> None:
    """Reject nesting that the compilers of Jinja and Python can't handle."""
    waiting: list[tuple[nodes.Node, int, int]] = [(tree, 0, 0)]
    while waiting:
        node, depth, loops = waiting.pop()
        if depth > _MAX_DEPTH or loops > _MAX_LOOPS:
            what = f"parts nested {depth} deep, loops {loops}"
            raise TemplateTooLargeError(f"{what} (limits: {_MAX_DEPTH} and {_MAX_LOOPS})")
        inside = loops + isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock)
        waiting += [(child, depth + 1, inside) for child in node.iter_child_nodes()]


def _is_small(value: Any) -> bool:
    return isinstance(value, int | float) and -64 <= value <= 64  # their powers are small, too


def _indent_of(width: Any) -> str:
    pad = width if isinstance(width, str) else " " * min(max(width, 0), _MAX_INDENT + 1)
    if len(pad) > _MAX_INDENT:
        raise TemplateTooLargeError(f"indent must be at most {_MAX_INDENT} (got {width!r})")
    return pad


def _no_format(*_: Any, **__: Any) -> str:
    raise SecurityError("texts may not be formatted by a chat template")
