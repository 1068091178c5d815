"""Why llguidance does not take a schema, and which keyword of it is to blame."""

import re
from typing import Any

import llguidance

from pyvt.errors import RequestError
from pyvt.structured.endless import finite_schema
from pyvt.structured.grammar import compile_schema
from pyvt.structured.schema import keyword_to_blame


def schema_fault(schema: Any, options: dict[str, Any]) -> tuple[str, str] | None:
    """Return a pointer into a schema and what is wrong there, None for one that can be honoured.

    Args:
        schema: an object or a boolean.
        options: of llguidance's compiler of schemas.
    """
    schema, endless = finite_schema(schema)
    if endless is not None:
        return endless, "it requires itself or is false"
    reason = _why_refused(schema, options)
    if reason is None:
        return None
    return refused_keyword(schema, options), plain_reason(reason)


def refused_keyword(schema: Any, options: dict[str, Any]) -> str:
    """Return a JSON pointer to the keyword for which a schema is refused."""
    return keyword_to_blame(schema, lambda part: _why_refused(part, options) is not None)


def plain_reason(reason: str) -> str:
    """Return what is wrong, of several lines that draw it below the grammar made of a request.

    An assertion of the compiler's own is about the number of its rules.
    """
    if reason.startswith("panic: "):
        return "more rules than its compiler takes; send a smaller one"
    parse_error = re.search(r"^error: (.+)$", reason, re.MULTILINE)
    if parse_error is not None:
        return parse_error[1]
    first = next(iter(reason.splitlines()), "")
    return first.split(" (in regex): ")[-1]


def _why_refused(schema: Any, options: dict[str, Any]) -> str | None:
    if not isinstance(schema, dict):
        return None
    try:
        return llguidance.LLMatcher.validate_grammar(compile_schema(schema, options)) or None
    except RequestError as error:
        return str(error).partition(", got ")[2]
