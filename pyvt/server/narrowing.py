"""What /openapi.json tells of fields beyond their types: ranges, some of which the model decides.

A value that is valid by the description is one that the server takes, as far as one field alone
can say. Fields that are known in order to be refused by name are told as null.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyvt.sampling_params import MAX_REPETITION, MAX_STRINGS, MIN_REPETITION

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the description of a server depends on.

    Attributes:
        names: of the model.
        vocab_size: ids of tokens lie below it.
        max_model_len: most tokens of a prompt and its answer.
    """

    names: Sequence[str] = ()
    vocab_size: int = 1 << 18
    max_model_len: int = 1 << 20


def narrow(schemas: Mapping[str, Schema], facts: ModelFacts) -> None:
    """Replace what schemas of requests tell of their fields by what the server takes."""
    told = _fields(facts)
    for name, schema in schemas.items():
        properties = schema.get("properties", {})
        for field in properties.keys() & told.keys():
            if field != "model" or facts.names:
                properties[field] = told[field]
        for field, own in _OWN.get(name, {}).items():
            properties[field] = own(facts)
        if name in _NEEDED:
            schema["required"] = list(_NEEDED[name])


def below(limit: int) -> str:
    """Return a regular expression of the decimal numbers from 0 up to below a limit."""
    digits = str(limit - 1)
    ways = ["0"] if limit > 1 else []
    if len(digits) > 1:
        ways.append(f"[1-9][0-9]{{0,{len(digits) - 2}}}")
    for place, digit in enumerate(digits):
        low = 1 if place == 0 else 0
        if int(digit) > low:
            ways.append(
                f"{digits[:place]}[{low}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
            )
    return f"^({'|'.join([*ways, digits])})$"


def _optional(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def _text(**more: Any) -> Schema:
    return {"type": "string", "minLength": 1, **more}


def _list(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _token(facts: ModelFacts) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": facts.vocab_size - 1}


def _number(low: float, high: float | None = None, *, is_above: bool = False) -> Schema:
    schema: Schema = {"type": "number", "exclusiveMinimum" if is_above else "minimum": low}
    return schema if high is None else {**schema, "maximum": high}


def _whole(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


_NOTHING: Schema = {"type": "null", "description": "refused by name when it is given"}
_SCHEMA: Schema = {"type": "object", "properties": {"type": {"enum": ["object", "string"]}}}
_FORMAT: Schema = {
    "oneOf": [
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"enum": ["text", "json_object"]}},
        },
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["schema"],
                    "properties": {"schema": _SCHEMA, "strict": {"type": "boolean"}},
                },
            },
        },
    ]
}
_STRUCTURE: Schema = {
    "oneOf": [
        {
            "type": "object",
            "required": ["choice"],
            "properties": {"choice": _list(_text(), minItems=1)},
            "additionalProperties": False,
        },
        {
            "type": "object",
            "required": ["json_object"],
            "properties": {"json_object": {"const": True}},
            "additionalProperties": False,
        },
    ],
    "description": "also json, regex, grammar and structural_tag, one of them",
}


def _fields(facts: ModelFacts) -> dict[str, Schema]:
    """Return what is told of a field of this name, wherever it is."""
    token = _token(facts)
    bias = {
        "type": "object",
        "propertyNames": {"pattern": below(facts.vocab_size)},
        "additionalProperties": _number(-100, 100),
    }
    length = _optional(_whole(1, facts.max_model_len - 1))
    return {
        "model": _optional({"type": "string", "enum": list(facts.names)}),
        "max_tokens": length,
        "max_completion_tokens": length,
        "max_output_tokens": length,
        "min_tokens": _optional(_whole(0, facts.max_model_len - 1)),
        "temperature": _optional({"anyOf": [{"const": 0}, _number(1e-5)]}),
        "top_p": _optional(_number(0, 1, is_above=True)),
        "repetition_penalty": _optional(_number(MIN_REPETITION, MAX_REPETITION)),
        "logit_bias": _optional(bias),
        "stop_token_ids": _optional(_list(token)),
        "allowed_token_ids": _optional(_list(token, minItems=1)),
        "bad_words": _optional(_list(_text(pattern=r"^[a-z]+$"), maxItems=MAX_STRINGS)),
        "stop": _optional({"anyOf": [_text(), _list(_text(), maxItems=MAX_STRINGS)]}),
        "stop_sequences": _optional(_list(_text(), maxItems=MAX_STRINGS)),
        "cache_salt": _optional(_text(maxLength=256, pattern="^[!-~]+$")),
        "timeout_s": _optional(_number(1, 10**9)),
        "n": _optional(_whole(1, 128)),
        "logprobs": _optional(_whole(0, 20)),
        "top_logprobs": _optional(_whole(0, 20)),
        "response_format": _optional(_FORMAT),
        "structured_outputs": _optional(_STRUCTURE),
        "dimensions": _optional(_whole(1, 1 << 16)),
        "truncation": _optional({"const": "disabled"}),
        "background": _optional({"const": False}),
        **dict.fromkeys(
            (
                *("forced_token_ids", "chat_template", "documents", "suffix", "best_of"),
                *("previous_response_id", "conversation"),
            ),
            _NOTHING,
        ),
    }


def _prompts(facts: ModelFacts) -> Schema:
    ids = _list(_token(facts), minItems=1)
    several = _list({"anyOf": [_text(), ids]}, minItems=1, maxItems=256)
    return {"anyOf": [_text(), ids, several]}


# Fields without which a part of a request says nothing.
_NEEDED: Mapping[str, Sequence[str]] = {
    "Part": ("type", "text"),
    "InputPart": ("type", "text"),
    "Block": ("type", "text"),
    "ResponseTool": ("type", "name"),
}
# What is told of a field of one schema alone.
_OWN: Mapping[str, Mapping[str, Any]] = {
    "CompletionRequest": {"prompt": _prompts},
    "EmbeddingsRequest": {"input": _prompts},
    "ChatRequest": {"logprobs": lambda _: _optional({"type": "boolean"})},
    "DetokenizeRequest": {"tokens": lambda facts: _list(_token(facts))},
    "TokenizeRequest": {"prompt": lambda _: _optional(_text())},
    "Part": {
        "type": lambda _: {"enum": ["text", "input_text", "output_text"]},
        "text": lambda _: {"type": "string"},
    },
    "InputPart": {
        "type": lambda _: {"enum": ["input_text", "output_text", "text"]},
        "text": lambda _: {"type": "string"},
    },
    "ResponseTool": {"type": lambda _: {"const": "function"}, "name": lambda _: _text()},
    "TextFormat": {"type": lambda _: {"enum": ["text", "json_object"]}},
    "InputItem": {"type": lambda _: {"enum": ["message", None]}},
    "InputMessage": {"content": lambda _: {"type": "string"}},
    "ToolChoice": {"type": lambda _: {"enum": ["auto", "any", "none"]}},
    "MessagesRequest": {"max_tokens": lambda facts: _whole(1, facts.max_model_len - 1)},
    "ResponsesRequest": {
        "input": lambda _: {
            "anyOf": [_text(), _list({"$ref": "#/components/schemas/InputItem"}, minItems=1)]
        }
    },
    "Block": {"type": lambda _: {"const": "text"}, "text": lambda _: {"type": "string"}},
}
