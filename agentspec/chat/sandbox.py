"""The one Jinja environment in which chat templates run, with caps on time, loops and sizes.

A template comes with the model file, so it is input like any other: it may not reach Python's
internals, may not build huge strings and may not run for ever.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context

from agentspec.chat.guard import Marks

_FILTERS = frozenset(
    (
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "dictsort",
        "e",
        "escape",
        "first",
        "float",
        "forceescape",
        "groupby",
        "indent",
        "int",
        "items",
        "join",
        "last",
        "length",
        "list",
        "lower",
        "map",
        "max",
        "min",
        "reject",
        "rejectattr",
        "replace",
        "reverse",
        "round",
        "safe",
        "select",
        "selectattr",
        "sort",
        "string",
        "sum",
        "title",
        "trim",
        "truncate",
        "unique",
        "upper",
        "wordcount",
    )
)
_MAX_WIDTH = 1_000
_MAX_BITS = 4_096
_NON_ASCII = re.compile(r"[^\x00-\x7f]")


class RefusedError(jinja2.TemplateError):
    """The template called raise_exception: it does not take these messages."""


class LimitError(jinja2.TemplateError):
    """The template ran too long or made too much text."""


class Run:
    """The budget of one rendering: a deadline in seconds and a size in characters."""

    def __init__(self, marks: Marks, seconds: float, size: int) -> None:
        self.marks = marks
        self.size = size
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise LimitError(f"it ran for more than {self._seconds:g} s")

    def check_size(self, size: int) -> None:
        if size > self.size:
            raise LimitError(f"it would make more than {self.size} characters")


RUN = "__run__"


def run_of(context: Context) -> Run:
    # `parent`, not a look-up by name: a template can shadow names but not change the parent.
    run = context.parent[RUN]
    assert isinstance(run, Run)
    return run


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox as chat templates expect it, bounded."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            autoescape=False,
            extensions=[loopcontrols, _Generation],
        )
        self.filters = {k: v for k, v in self.filters.items() if k in _FILTERS}
        join, replace, indent = (self.filters[k] for k in ("join", "replace", "indent"))

        @pass_context
        def bounded_join(context: Context, value: Any, d: str = "", attribute: Any = None) -> Any:
            items = list(value)
            _check_join(run_of(context), d, items)
            return join(context.eval_ctx, items, d, attribute)

        @pass_context
        def bounded_replace(
            context: Context, s: Any, old: str, new: str, count: int | None = None
        ) -> Any:
            _check_replace(run_of(context), str(s), str(old), str(new))
            return replace(context.eval_ctx, s, old, new, count)

        def bounded_indent(s: Any, width: Any = 4, *args: Any, **kwargs: Any) -> Any:
            _check_width(width)
            return indent(s, width, *args, **kwargs)

        self.filters.update(
            tojson=_tojson,
            join=bounded_join,
            replace=bounded_replace,
            indent=bounded_indent,
            __each__=_each,
            __concat__=_concat,
        )
        self.globals = {
            "range": self.globals["range"],
            "dict": dict,
            "namespace": self.globals["namespace"],
            "cycler": self.globals["cycler"],
            "joiner": self.globals["joiner"],
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(str(form)[:200]),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _bound(super()._parse(source, name, filename))

    def call(
        __self,  # so that a template's keyword arguments cannot collide with it
        __context: Context,
        __obj: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        run = run_of(__context)
        run.check_time()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(run, owner, getattr(__obj, "__name__", ""), args)
        return super().call(__context, __obj, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        # A width of four digits, or one that is itself a replacement field.
        if wrapped is not None and re.search(r"[0-9]{4}|\{[^}]*\{", str(value.__self__)):
            raise LimitError(f"it formats with a width above {_MAX_WIDTH}")
        return wrapped

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        run = run_of(context)
        run.check_time()
        if operator == "*":
            for a, b in ((left, right), (right, left)):
                if isinstance(a, (str, list, tuple)) and isinstance(b, int):
                    run.check_size(len(a) * b)
        elif operator == "+" and isinstance(left, (str, list)) and isinstance(right, (str, list)):
            run.check_size(len(left) + len(right))
        elif operator == "**" and (not isinstance(right, int) or abs(right) > 64):
            raise LimitError("it uses an exponent above 64")
        elif operator == "%" and isinstance(left, str):
            _check_format(left, right if isinstance(right, tuple) else (right,))
        value = super().call_binop(context, operator, left, right)
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise LimitError(f"it made a number of more than {_MAX_BITS} bits")
        return value


class _Generation(Extension):
    """Accepts `{% generation %}` blocks, which mark the assistant's text for training only."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bound(tree: nodes.Template) -> nodes.Template:
    """Wraps every loop and every `~` so that they count against the budget."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, "__each__", [], [], None, None, lineno=loop.lineno)
    stack: list[nodes.Node] = [tree]
    while stack:
        node = stack.pop()
        for name, value in list(node.iter_fields()):
            if isinstance(value, list):
                value[:] = [_bounded_concat(item) for item in value]
            elif isinstance(value, nodes.Concat):
                setattr(node, name, _bounded_concat(value))
        stack.extend(node.iter_child_nodes())
    return tree


def _bounded_concat(node: Any) -> Any:
    if not isinstance(node, nodes.Concat):
        return node
    items = nodes.List(list(node.nodes), lineno=node.lineno)
    return nodes.Filter(items, "__concat__", [], [], None, None, lineno=node.lineno)


@pass_context
def _each(context: Context, value: Any) -> Iterator[Any]:
    run = run_of(context)
    if isinstance(value, Undefined):
        return iter(value)

    def items() -> Iterator[Any]:
        for item in value:
            run.check_time()
            yield item

    return items()


@pass_context
def _concat(context: Context, value: list[Any]) -> str:
    texts = [str(item) for item in value]
    run_of(context).check_size(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _tojson(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if indent is not None:
        _check_width(len(indent) if isinstance(indent, str) else indent)
    text = json.dumps(
        value,
        ensure_ascii=False,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain_value,
    )
    marks = run_of(context).marks
    # Escaping may form pieces that the strings did not hold, so the result is marked afresh.
    text = marks.clean(text)
    return marks.text(_NON_ASCII.sub(_escape, text) if ensure_ascii else text)


def _plain_value(value: Any) -> Any:
    if isinstance(value, Undefined):
        return None
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _escape(match: re.Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def _raise_exception(message: Any) -> None:
    raise RefusedError(str(message))


def _check_width(width: Any) -> None:
    if isinstance(width, int) and width > _MAX_WIDTH:
        raise LimitError(f"it uses a width above {_MAX_WIDTH}")


def _check_join(run: Run, separator: str, items: Iterable[Any]) -> None:
    run.check_size(sum(len(str(item)) + len(separator) for item in items))


def _check_replace(run: Run, text: str, old: str, new: str) -> None:
    run.check_size(len(text) + text.count(old) * len(new))


def _check_format(text: str, values: tuple[Any, ...]) -> None:
    starred = "*" in text and any(isinstance(v, int) and v > _MAX_WIDTH for v in values)
    if starred or re.search(r"[0-9]{4}", text):
        raise LimitError(f"it formats with a width above {_MAX_WIDTH}")


def _check_method(run: Run, owner: str, name: str, args: tuple[Any, ...]) -> None:
    if name in ("ljust", "rjust", "center", "zfill", "expandtabs"):
        for value in args:
            _check_width(value)
    elif name == "join" and args:
        _check_join(run, owner, list(args[0]))
    elif name == "replace" and len(args) >= 2:
        _check_replace(run, owner, str(args[0]), str(args[1]))
