"""Options of commands, made from the fields of settings: a setting is written once.

The flag, its type, its help and the default in the help come from the dataclass field; a command
names the fields that it takes. An option that was not given is None, so that a command passes on
what the user said and nothing else.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
NoneType = type(None)
SEVERAL_TIMES = "may be given several times"


class AutoInt(click.ParamType[int | str]):
    """An integer or the word ``auto``."""

    name = "integer|auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """Return the value as its type says."""
        if isinstance(value, int) or value == "auto":
            return value  # type: ignore[no-any-return]
        try:
            return int(value)
        except ValueError:
            self.fail(f"expected an integer or 'auto', got {value!r}", param, ctx)


def field_options(
    settings: type[Any],
    names: Sequence[str],
    *,
    flags: Mapping[str, str] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[CommandT], CommandT]:
    """Return a decorator that gives a command one option for each named field.

    Args:
        settings: the dataclass.
        names: its fields, in the order of the help.
        flags: flags that are not the field's name with dashes; the parameter keeps that name.
        defaults: what the command puts in for the field's default; shown in the help.
    """
    hints = get_type_hints(settings)
    by_name = {field.name: field for field in fields(settings)}
    options = [
        _option(
            by_name[name],
            hints[name],
            (flags or {}).get(name, "--" + name.replace("_", "-")),
            (defaults or {}).get(name, by_name[name].default),
        )
        for name in names
    ]

    def decorate(command: CommandT) -> CommandT:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def given(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the named options that the user gave."""
    return {name: values[name] for name in names if values.get(name) not in (None, ())}


def _option(
    field: Field[Any], hint: Any, flag: str, default: Any
) -> Callable[[CommandT], CommandT]:
    text = str(field.metadata.get("help", ""))
    if default is not MISSING and default is not None and default != () and default is not False:
        text += f"  [default: {default}]"
    choices = field.metadata.get("choices")
    if choices is not None:
        by_text = {str(choice): choice for choice in choices}
        return click.option(
            flag,
            field.name,
            type=click.Choice(list(by_text)),
            default=None,
            callback=lambda ctx, param, text: by_text.get(text),
            help=text,
        )
    members = _members(hint)
    if bool in members:
        if default is True:
            text = text.removesuffix("  [default: True]") + "  [default: on]"
        both = f"{flag}/--no-{flag.removeprefix('--')}"
        return click.option(both, field.name, is_flag=True, default=None, help=text)
    for member in members:
        if get_origin(member) is not None and issubclass(get_origin(member), Sequence):
            (item,) = get_args(member)
            help_text = f"{text}; {SEVERAL_TIMES}"
            return click.option(flag, field.name, type=item, multiple=True, help=help_text)
    kind: Any = (
        AutoInt() if "auto" in members else next(m for m in (float, int, str) if m in members)
    )
    return click.option(flag, field.name, type=kind, default=None, help=text)


def _members(hint: Any) -> list[Any]:
    """Return the types of a union without None; the words of a Literal stand for themselves."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return [member for part in get_args(hint) for member in _members(part)]
    if origin is Literal:
        return list(get_args(hint))
    return [] if hint is NoneType else [hint]
