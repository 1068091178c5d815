"""From a request's settings to a grammar in llguidance's own form, checked for hostile sizes.

llguidance descends into nested rules and references on the stack, so their number is bounded here;
its own limits bound everything else but the texts that it forces, which have no end in a grammar
such as ``/a+/ "a"``: so it is told to force none.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from pyvt.errors import RequestError
from pyvt.sampling_params import StructuredOutputsParams
from pyvt.structured.endless import endless_rule, finite_schema
from pyvt.structured.schema import SchemaSize, dump, without_additional
from pyvt.structured.vocabulary import special_name

MAX_SCHEMA_BYTES = 1 << 20
MAX_GRAMMAR_BYTES = 64 << 10
MAX_REGEX_BYTES = 16 << 10
MAX_RULES = 500
MAX_REFERENCES = 500
MAX_NESTING = 200
# Objects and lists inside each other; llguidance's own reader of JSON takes a few more.
MAX_SCHEMA_LEVELS = 120
# Each is an item of the first row of the compiler's ``MAX_ITEMS``.
MAX_CHOICES = 7900

# Spaces and line ends between two signs of JSON. Without a bound a model may write them for ever.
WHITESPACE = r"[ \n\r\t]{1,8}"
_NO_FORCING = '\n%llguidance {"no_forcing": true}\n'
# Each reads a text once, whatever is in it: a text of a request is matched with the GIL held.
_RULE = re.compile(r"^[ \t]*[?!]?[\w.\-]+(\[[^\]\n]*\])?[ \t]*(::=|:)", re.MULTILINE)
_IS_LARK = re.compile(r"^[ \t]*(%llguidance\b|start[ \t]*:)", re.MULTILINE)
_REGEX_PART = re.compile(r"/(?:[^/\n\\]|\\.)*")
_JSON_PART = re.compile(r"%json\s*")
_TEXT = "TEXT: /(.|\\n)*/\nWS: /[ \\n\\r\\t]{1,8}/\n"


@dataclass(frozen=True, slots=True)
class GrammarText:
    """A grammar for llguidance.

    Attributes:
        text: JSON with a list of grammars.
        schema: the JSON schema inside, None for other kinds.
        is_free_text: as in ``CompiledGrammar``.
    """

    text: str
    schema: Any = None
    is_free_text: bool = False


def refused(expected: str, got: Any, *, at: str = "") -> RequestError:
    """Return the error for settings that cannot be met; the caller raises it."""
    shown = got if isinstance(got, str) else repr(got)
    shown = shown if len(shown) <= 200 else f"{shown[:197]}..."
    return RequestError(
        f"[structured] structured_outputs{at and '.'}{at}: expected {expected}, got {shown}",
        param="structured_outputs",
        code="invalid_value",
    )


def grammar_text(
    params: StructuredOutputsParams,
    special_texts: Collection[str],
    options: Mapping[str, Any] | None = None,
) -> GrammarText:
    """Return the grammar of a request.

    Args:
        params: what the text must be.
        special_texts: special tokens of the model, which triggers and marks may be.
        options: more options of llguidance's compiler of schemas.

    Raises:
        RequestError: it is too large, nested too deeply, or no grammar at all.
    """
    schema = None
    if params.json is not None or params.json_object:
        schema = _finite(loaded_schema(params), "json")
        body = _json_grammars(schema, params, options)
    elif params.regex is not None:
        _check_size("regex", params.regex, MAX_REGEX_BYTES)
        body = [{"lark_grammar": f"start: /{llguidance.regex_to_lark(params.regex)}/"}]
    elif params.choice is not None:
        if len(params.choice) > MAX_CHOICES:
            got = f"{len(params.choice)}; send json with an enum of them"
            raise refused(f"at most {MAX_CHOICES} texts", got, at="choice")
        words = " | ".join(quoted(word) for word in params.choice)
        body = [{"lark_grammar": f"start: {words}"}]
    elif params.grammar is not None:
        body = [{"lark_grammar": _lark(params.grammar)}]
    else:
        assert params.structural_tag is not None, "one of the kinds is set"
        body = [{"lark_grammar": _tags(params, special_texts, options)}]
    if params.begin_after is not None:
        mark = _symbol(params.begin_after, special_texts)
        head = f"head: TEXT {mark}" if mark[0] == "<" else f"head[lazy]: TEXT {mark}"
        start = {"lark_grammar": f"start: head WS? @body\n{head}\n{_TEXT}"}
        body = [start, body[0] | {"name": "body"}, *body[1:]]
    elif schema is not None:
        body = [{"lark_grammar": "start: @body"}, body[0] | {"name": "body"}, *body[1:]]
    body[0] = {"lark_grammar": body[0]["lark_grammar"] + _NO_FORCING}
    is_free_text = params.free_text or params.structural_tag is not None
    return GrammarText(json.dumps({"grammars": body}, ensure_ascii=False), schema, is_free_text)


def quoted(text: str) -> str:
    """Return a literal of a Lark grammar, which takes no DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_size(name: str, text: str, limit: int) -> None:
    size = len(text.encode("utf-8", "replace"))
    if size > limit:
        raise refused(f"at most {limit} bytes", f"{size}", at=name)


def loaded_schema(params: StructuredOutputsParams) -> Any:
    """Return the schema of settings that have one; RequestError for one that is too large."""
    if params.json is None:
        return {"type": "object"}
    assert isinstance(params.json, str), "settings keep schemas as text"
    _check_size("json", params.json, MAX_SCHEMA_BYTES)
    try:
        schema = json.loads(params.json)
        size = SchemaSize()
        size.add(schema)
        if params.disable_additional_properties:
            schema = without_additional(schema)
    except RecursionError as error:
        raise refused(f"at most {MAX_SCHEMA_LEVELS} levels", "more", at="json") from error
    if not isinstance(schema, (dict, bool)):
        raise refused("an object or a boolean", schema, at="json")
    _check_schemas(size, "json")
    return schema


def schema_options(
    params: StructuredOutputsParams, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options of llguidance's compiler of schemas."""
    if params.disable_any_whitespace:
        return {"whitespace_flexible": False, **(options or {})}
    return {"whitespace_pattern": params.whitespace_pattern or WHITESPACE, **(options or {})}


def _json_grammars(
    schema: Any, params: StructuredOutputsParams, options: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    if schema is False:
        raise refused("a grammar that some text satisfies", "one without any")
    text = compile_schema({} if schema is True else schema, schema_options(params, options))
    return list(json.loads(text)["grammars"])


def compile_schema(schema: Any, options: dict[str, Any]) -> str:
    """Return llguidance's form of a schema; whether it can be honoured shows later.

    Raises:
        RequestError: it has what llguidance's reader of JSON does not take, such as huge numbers.
    """
    try:
        return llguidance.LLMatcher.grammar_from_json_schema(
            dump(schema),
            overrides=options,  # type: ignore[arg-type]
        )
    except ValueError as error:
        reason = str(error).partition(" at line ")[0]
        raise refused("levels and numbers that can be read", reason, at="json") from error


def _lark(text: str) -> str:
    """Return a Lark grammar, converted from GBNF where it is that."""
    _check_size("grammar", text, MAX_GRAMMAR_BYTES)
    num_rules = len(_RULE.findall(text))
    if num_rules > MAX_RULES:
        raise refused(f"at most {MAX_RULES} rules", str(num_rules), at="grammar")
    is_lark = _IS_LARK.search(text) is not None
    if is_lark:
        _check_json_parts(text)
    lark = text if is_lark else _from_gbnf(text)
    try:
        rule = endless_rule(lark)
    except RecursionError as error:
        raise refused(f"at most {MAX_NESTING} levels", "more", at="grammar") from error
    if rule is not None:
        rule = "root" if rule == "start" and not is_lark else rule
        got = f"rule {rule!r}, which always comes back to itself; give it an alternative that ends"
        raise refused("rules that some text ends", got, at="grammar")
    return lark


def _from_gbnf(text: str) -> str:
    try:
        return gbnf_to_lark(text)
    except RecursionError as error:
        raise refused(f"at most {MAX_NESTING} levels", "more", at="grammar") from error
    except (GbnfToLarkError, ValueError, IndexError) as error:
        raise refused("a GBNF or Lark grammar", str(error), at="grammar") from error
    except Exception as error:  # the converter raises plain Exception for unknown rules
        if type(error) is not Exception:
            raise
        raise refused("a GBNF or Lark grammar", str(error), at="grammar") from error


def _check_json_parts(text: str) -> None:
    """Bound the schemas inside a Lark grammar, which llguidance reads itself."""
    size, schemas = SchemaSize(), []
    for part in _JSON_PART.finditer(text):
        try:
            schema, _ = json.JSONDecoder().raw_decode(text, part.end())
            size.add(schema)
        except (ValueError, RecursionError) as error:
            raise refused("a JSON schema behind %json", str(error), at="grammar") from error
        schemas.append(schema)
    _check_schemas(size, "grammar")
    for schema in schemas:
        _finite(schema, "grammar")
    longest = max((len(found[0]) for found in _REGEX_PART.finditer(text)), default=0)
    _check_pattern(longest, "grammar")


def _check_schemas(size: SchemaSize, name: str) -> None:
    if size.num_levels > MAX_SCHEMA_LEVELS:
        raise refused(f"at most {MAX_SCHEMA_LEVELS} levels", str(size.num_levels), at=name)
    if size.num_references > MAX_REFERENCES:
        raise refused(f"at most {MAX_REFERENCES} references", str(size.num_references), at=name)
    _check_pattern(size.longest_pattern, name)


def _finite(schema: Any, name: str) -> Any:
    """Return what of a schema finite values satisfy; refuse one of which nothing is left."""
    schema, reference = finite_schema(schema)
    if reference is not None:
        got = (
            f"{reference}, which requires itself or is false; let it be left out or be another type"
        )
        raise refused("a schema that some finite value satisfies", got, at=name)
    return schema


def _check_pattern(length: int, name: str) -> None:
    if length > MAX_REGEX_BYTES:
        expected = f"regular expressions of at most {MAX_REGEX_BYTES} characters"
        raise refused(expected, str(length), at=name)


def _symbol(text: str, special_texts: Collection[str]) -> str:
    """Return a text for Lark: the bare name of a special token, else a string."""
    return special_name(text) if text in special_texts else quoted(text)


def _tags(
    params: StructuredOutputsParams,
    special_texts: Collection[str],
    options: Mapping[str, Any] | None,
) -> str:
    """Return a grammar of free text in which a trigger begins a tag with a schema inside."""
    assert isinstance(params.structural_tag, str), "settings keep tags as text"
    _check_size("structural_tag", params.structural_tag, MAX_SCHEMA_BYTES)
    spec = json.loads(params.structural_tag)
    size = SchemaSize()
    size.add(spec)
    _check_schemas(size, "structural_tag")
    lines = []
    for i, tag in enumerate(spec["structures"]):
        trigger = next(t for t in spec["triggers"] if tag["begin"].startswith(t))
        mark = _symbol(trigger, special_texts)
        head = f"head_{i}" if mark[0] == "<" else f"head_{i}[lazy]"
        inside = _finite(tag["schema"], "structural_tag")
        inside = inside if isinstance(inside, bool) else dict(inside)
        if isinstance(inside, dict):
            if params.disable_additional_properties:
                inside = without_additional(inside)
            inside["x-guidance"] = schema_options(params, options)
        begin = tag["begin"][len(trigger) :]
        parts = [f"%json {dump(inside)}"]
        parts = [quoted(begin), *parts] if begin else parts
        parts = [*parts, quoted(tag["end"])] if tag["end"] else parts
        lines += [f"{head}: TEXT {mark}", f"tag_{i}: head_{i} {' '.join(parts)}"]
    tags = " | ".join(f"tag_{i}" for i in range(len(spec["structures"])))
    return "\n".join([f"start: ({tags})* tail", "tail: TEXT", *lines, _TEXT])
