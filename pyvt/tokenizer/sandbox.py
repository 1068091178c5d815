"""The jinja2 environment of chat templates: that of transformers, with limits.

Templates come with model files, so they are code that nobody has read. The sandbox keeps them from
Python's internals, and ``template_limits`` from taking all time or memory. Filters that cannot be
bounded and that no chat needs are left out.

Environment: trim_blocks, lstrip_blocks, loop controls, ``{% generation %}`` (prints its body),
``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``, ``namespace``, ``dict``.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from markupsafe import Markup, escape

from pyvt.tokenizer.template_limits import (
    Rendering,
    check_binop,
    check_filter,
    check_format,
    check_ints,
    check_method,
    check_strftime,
    joined_within,
    listed_within,
)

_LEFT_OUT_FILTERS = frozenset(["pprint", "random", "striptags", "urlize", "wordwrap", "xmlattr"])
_LEFT_OUT_METHODS = frozenset(["expandtabs", "maketrans", "to_bytes", "translate"])
_ORIGINAL_TEXT_FILTERS = frozenset(
    ["capitalize", "e", "escape", "forceescape", "lower", "title", "upper", "urlencode"]
)
_CASE_METHODS = frozenset(["capitalize", "casefold", "lower", "swapcase", "title", "upper"])


_RENDERING: ContextVar[Rendering] = ContextVar("pyvt_rendering")


class _PlainNamespace(Namespace):
    """A namespace that prints as a word: its content may refer to itself many times over."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"


def _check_attribute(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace holds no attribute that begins with '_', got {name!r}")


class _Generation(Extension):
    """``{% generation %}`` marks what a model wrote, for training; here it prints its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_body")
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """See the module docstring. Safe to share: all state is in the ``Rendering`` of a thread."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # or constants are computed while compiling, outside the limits
            finalize=_as_text,
            extensions=[_Generation, loopcontrols],
        )
        filters = {**FILTERS, "tojson": _tojson, "sum": _sum, "string": _as_text}
        self.filters = {
            name: _bounded_filter(name, function)
            for name, function in filters.items()
            if name not in _LEFT_OUT_FILTERS
        }
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _PlainNamespace
        self.globals["dict"] = dict
        del self.globals["lipsum"]

    def concat(self, parts: Iterable[str]) -> str:
        """Join the output of a block; called by compiled templates."""
        rendering = _RENDERING.get()
        pieces, size = [], 0
        for part in parts:
            size += len(part)
            rendering.check(size)
            pieces.append(part)
        return str(rendering.made("".join(pieces)))

    def join(self, *values: Any) -> str:
        """``a ~ b``."""
        rendering = _RENDERING.get()
        rendering.check(sum(map(rendering.weigh, values)))
        return str(rendering.made("".join(map(_as_text, values))))

    def tick(self) -> None:
        """A turn of a loop."""
        _RENDERING.get().tick()

    def made(self, value: Any) -> Any:
        """A list, tuple or dict as it is written."""
        return _RENDERING.get().made(value)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = super()._parse(source, name, filename)
        return _with_limits(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        rendering = _RENDERING.get()
        rendering.tick()
        check_binop(rendering, operator, left, right)
        if operator == "+" and isinstance(left, str) and isinstance(right, str):
            if isinstance(left, Markup) and not isinstance(right, Markup):
                right = _escaped(rendering, right)
            elif isinstance(right, Markup) and not isinstance(left, Markup):
                left = _escaped(rendering, left)
        return rendering.made(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        rendering = _RENDERING.get()
        rendering.tick()
        receiver = getattr(__obj, "__self__", None)
        if isinstance(__obj, BuiltinMethodType) and isinstance(receiver, str | bytes | int):
            if __obj.__name__ == "join" and args and isinstance(args[0], Iterable):
                args = (_listed(rendering, args[0]), *args[1:])
            check_method(rendering, receiver, __obj.__name__, args)
            if isinstance(receiver, str) and __obj.__name__ in _CASE_METHODS:
                original = rendering.restored(receiver)
                return rendering.made(rendering.guarded(getattr(original, __obj.__name__)()))
        return rendering.made(super().call(__context, __obj, *args, **kwargs))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _LEFT_OUT_METHODS and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        method = super().wrap_str_format(value)
        if method is None:
            return None
        template = value.__self__

        @functools.wraps(method)
        def bounded(*args: Any, **kwargs: Any) -> str:
            check_format(_RENDERING.get(), template, "{", (*args, *kwargs.values()))
            return method(*args, **kwargs)

        return bounded


def render(
    environment: ChatEnvironment, code: Any, rendering: Rendering, variables: dict[str, Any]
) -> str:
    """Render a compiled template of ``environment`` within the limits of ``rendering``."""
    token = _RENDERING.set(rendering)
    try:
        return str(code.render(variables))
    finally:
        _RENDERING.reset(token)


def _with_limits(tree: nodes.Template) -> nodes.Template:
    """Put a look at the clock into every loop and a scale under every literal and ``~``."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, nodes.ExprStmt(_call("tick", [])))
    _weighed(tree)
    return tree


def _weighed(node: Any) -> Any:
    """Rebuild the expressions of a tree from the leaves up."""
    is_target = getattr(node, "ctx", "load") != "load"
    for field, value in node.iter_fields():
        if isinstance(value, list):
            value[:] = [_weighed(item) if isinstance(item, nodes.Node) else item for item in value]
        elif isinstance(value, nodes.Node):
            setattr(node, field, _weighed(value))
    if isinstance(node, nodes.Concat):
        return _call("join", node.nodes, node)
    if isinstance(node, nodes.List | nodes.Dict | nodes.Tuple) and not is_target:
        return _call("made", [node], node)
    return node


def _call(name: str, arguments: list[nodes.Expr], at: nodes.Node | None = None) -> nodes.Call:
    call = nodes.Call(nodes.EnvironmentAttribute(name), arguments, [], None, None)
    if at is not None:
        call.set_lineno(at.lineno)
    return call


def _as_text(value: Any) -> str:
    """``str`` of a value. Python prints stand-ins in lists as escapes; they are put back first."""
    if isinstance(value, str):
        return value
    rendering = _RENDERING.get()
    rendering.check(rendering.weigh(value))
    if not isinstance(value, list | tuple | dict):
        return str(value)
    return rendering.guarded(str(_restored_data(rendering, value)))


def _restored_data(rendering: Rendering, value: Any) -> Any:
    match value:
        case str():
            return rendering.restored(value)
        case list():
            return [_restored_data(rendering, item) for item in value]
        case tuple():
            return tuple(_restored_data(rendering, item) for item in value)
        case dict():
            return {
                _restored_data(rendering, k): _restored_data(rendering, v) for k, v in value.items()
            }
        case _:
            return value


def _escaped(rendering: Rendering, text: str) -> Markup:
    """Escape a plain text as it is joined to one that a template called safe."""
    return Markup(rendering.guarded(str(escape(rendering.restored(text)))))


def _bounded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a filter: clock before, estimate where needed, scale after."""
    value_idx = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Any, **kwargs: Any) -> Any:
        rendering = _RENDERING.get()
        rendering.tick()
        value, settings = args[value_idx], (*args[value_idx + 1 :], *kwargs.values())
        check_ints(settings)
        if name in _ORIGINAL_TEXT_FILTERS and isinstance(value, str):
            value = rendering.restored(value)
            args = (*args[:value_idx], value, *args[value_idx + 1 :])
            return rendering.made(rendering.guarded(str(function(*args, **kwargs))))
        if isinstance(value, Iterator) and name in ("join", "list"):
            value = _listed(rendering, value)
            args = (*args[:value_idx], value, *args[value_idx + 1 :])
        check_filter(rendering, name, value, settings)
        return rendering.made(function(*args, **kwargs))

    return bounded


def _listed(rendering: Rendering, values: Iterable[Any]) -> Any:
    """Return what can be weighed: the items of an iterator or a view as a list."""
    if isinstance(values, str | list | tuple | dict):
        return values
    return rendering.made(listed_within(rendering, iter(values)))


def _sum(values: Iterable[Any], attribute: Any = None, start: Any = 0) -> Any:
    """The sum of numbers; other things are added with ``+``, which is weighed."""
    total = start
    for value in values:
        number = value if attribute is None else value[attribute]
        if not isinstance(number, int | float) or not isinstance(total, int | float):
            raise TemplateError("sum: expected numbers")
        total += number
    return total


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes, in which stand-ins are written as what they stand for would be."""
    rendering = _RENDERING.get()
    encoder = json.JSONEncoder(
        ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys
    )
    text = joined_within(rendering, encoder.iterencode(value))
    for stand_in, char in rendering.originals.items():
        escaped = json.dumps(char, ensure_ascii=ensure_ascii)[1:-1]
        if escaped != char and stand_in in text:
            guarded = escaped[:-1] + stand_in if escaped.endswith(char) else escaped
            text = text.replace(stand_in, guarded)
    if not ensure_ascii or text.isascii():
        return text
    kept = "".join(map(re.escape, rendering.originals))
    return re.sub(f"[^\x00-\x7f{kept}]+", lambda match: json.dumps(match[0])[1:-1], text)


def _raise_exception(message: Any) -> None:
    raise TemplateError(str(message))


def _strftime_now(format: str) -> str:
    check_strftime(_RENDERING.get(), format)
    return datetime.now().strftime(format)
