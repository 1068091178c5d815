"""Fields of requests: checked by pydantic, and those that nobody knows are told of.

A field that is unknown changes nothing, but the answer then has a ``warnings`` list: a client that
misspelt ``max_tokens`` must see it. Null is the same as absence.
"""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema

from pyvt.server.errors import request_error
from pyvt.server.unsupported import UNSUPPORTED, Unsupported, check_supported
from pyvt.server.wrong_fields import wrong_field

ModelT = TypeVar("ModelT", bound="RequestModel")

# Names of other servers and of older versions, with ours: the first that a route has.
_MAX_TOKENS = ("max_tokens", "max_output_tokens")
_BUDGET = ("thinking_token_budget", "thinking")
_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "guided_json": ("structured_outputs",),
    "guided_regex": ("structured_outputs",),
    "guided_choice": ("structured_outputs",),
    "guided_grammar": ("structured_outputs",),
    "grammar": ("structured_outputs",),
    "json_schema": ("response_format", "text", "output_config"),
    "num_predict": _MAX_TOKENS,
    "n_predict": _MAX_TOKENS,
    "max_new_tokens": _MAX_TOKENS,
    "repeat_penalty": ("repetition_penalty",),
    "thinking_budget": _BUDGET,
    "reasoning_budget": _BUDGET,
    "think": ("chat_template_kwargs",),
    "enable_thinking": ("chat_template_kwargs",),
}
_OF_THE_SERVER = {"num_ctx": "--max-model-len of the server"}

# Known to OpenAI, without an effect here that a client could miss.
MAX_WARNINGS = 20
_HARMLESS = frozenset(
    {
        *("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"),
        *("prompt_cache_retention", "prediction", "max_tool_calls", "include_obfuscation"),
    }
)


def _fail_fast(schema: Any) -> None:
    if isinstance(schema, dict):
        if schema.get("type") == "list":
            schema["fail_fast"] = True
        for part in schema.values():
            _fail_fast(part)
    elif isinstance(schema, (list, tuple)):
        for part in schema:
            _fail_fast(part)


class RequestModel(BaseModel):
    """A request; types are strict, so ``"true"`` is no boolean and ``"1"`` no integer."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)
    unsupported: ClassVar[Mapping[str, Unsupported]] = {}

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Return the schema with lists that are refused at their first wrong item.

        A long list would otherwise get an error for each item before one of them is told.
        """
        schema = handler(source)
        _fail_fast(schema)
        return schema

    def warnings(self) -> list[str]:
        """Return a text for each field that had no effect; those of a field's object too."""
        unknown = list(self._unknown())
        told = [_warning(name, known, path) for name, known, path in unknown[:MAX_WARNINGS]]
        if len(unknown) > MAX_WARNINGS:
            told.append(f"{len(unknown) - MAX_WARNINGS} more fields are unknown and had no effect")
        return told

    def _unknown(self, path: str = "") -> Iterator[tuple[str, Mapping[str, Any], str]]:
        """Yield each unknown field, the fields that its object has, and the object's path."""
        known = type(self).model_fields
        for name, value in (self.model_extra or {}).items():
            is_known = name in _HARMLESS or name in UNSUPPORTED or name in self.unsupported
            if value is not None and not is_known:
                yield name, known, path
        for name in known:
            value = getattr(self, name)
            if isinstance(value, RequestModel):
                yield from value._unknown(f"{path}{name}.")

    def given(self, *names: str) -> dict[str, Any]:
        """Return the named fields that are neither absent nor null."""
        values = ((name, getattr(self, name)) for name in names)
        return {name: value for name, value in values if value is not None}


def told(request: RequestModel) -> dict[str, list[str]]:
    """Return the ``warnings`` of a body, and nothing where there are none."""
    warnings = request.warnings()
    return {"warnings": warnings} if warnings else {}


def _warning(name: str, known: Mapping[str, Any], path: str) -> str:
    matches = (*_OTHER_NAMES.get(name, ()), *get_close_matches(name[:80], known, n=1))
    near = _OF_THE_SERVER.get(name) or next((other for other in matches if other in known), None)
    hint = "" if near is None else f"; did you mean {near!r}?"
    return f"{path + name[:80]!r} is unknown and had no effect{hint}"


def checked(model: type[ModelT], body: Mapping[str, Any]) -> ModelT:
    """Return the request of a body.

    Raises:
        WireException: a field is missing, wrong or not supported; the first one is named.
    """
    try:
        request = model.model_validate(body)
    except ValidationError as error:
        param, text = wrong_field(error)
        refusal = request_error(f"[request] {param}: {text}", param=param, code="invalid_value")
        raise refusal from None
    check_supported(request.model_extra or {}, model.unsupported)
    return request
