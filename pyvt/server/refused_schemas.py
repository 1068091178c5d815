"""Which schema of a chat is to blame where the grammar of its calls was refused.

The grammar is made of all tools, so what its compiler says names none of them. Only then each
schema is compiled alone.
"""

import json
from collections.abc import Sequence
from typing import Any

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.server.errors import WireException, request_error
from pyvt.server.schema_rules import Tool, json_options, parameters_of, schema_error
from pyvt.structured.blame import schema_fault
from pyvt.structured.grammar import MAX_GRAMMAR_BYTES, refused, schema_options
from pyvt.structured.schema import dump


def with_schema_to_blame(
    error: RequestError, tools: Sequence[Tool], content: StructuredOutputsParams | None
) -> RequestError | WireException:
    """Return an error that names the tool, or the form of the content, and the keyword.

    Args:
        error: of the grammar of calls.
        tools: those that the grammar may call with their schemas.
        content: the form of the content beside calls, None where it has none.
    """
    if not str(error).startswith("[structured]"):
        return error
    schemas = [parameters_of(tool) for tool in tools]
    is_large = sum(len(dump(schema)) for schema in schemas) > MAX_GRAMMAR_BYTES
    for tool, schema in () if is_large else zip(tools, schemas, strict=True):
        is_strict = bool(tool.get("strict"))
        if fault := schema_fault(schema, json_options(is_strict=is_strict)):
            is_lenient = is_strict and not schema_fault(schema, json_options(is_strict=False))
            other = "leave out strict" if is_lenient else "correct it"
            return schema_error(tool, *fault, remedy=f"leave it out, or {other}")
    if content is not None and isinstance(content.json, str) and not is_large:
        options = schema_options(content, given_up(content))
        if fault := schema_fault(json.loads(content.json), options):
            pointer, reason = fault
            return refused(f"a schema that can be honoured, {pointer} cannot", reason, at="json")
    return _of_all(error, tools, is_alone=content is None and len(tools) == 1)


def given_up(content: StructuredOutputsParams) -> dict[str, Any]:
    """Return the options of a schema beside calls, which gives up what it cannot honour."""
    return {} if content.strict else {"coerce_one_of": True, "lenient": True}


def _of_all(error: RequestError, tools: Sequence[Tool], *, is_alone: bool) -> WireException:
    """Return the error of a grammar whose schemas are right one by one."""
    text = str(error).partition(": ")[2]
    if is_alone:
        param, text = tools[0]["place"], f"{text}; send {tools[0]['name'][:80]!r} a simpler schema"
    else:
        param, text = "tools", f"{text}; send fewer tools, or simpler schemas"
    return request_error(f"[request] {param}: {text}", param=param, code=error.code)
