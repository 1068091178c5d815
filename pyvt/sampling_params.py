"""SamplingParams: every per-request knob, checked when it is made.

Ids are checked here for type and sign; whether they lie inside the vocabulary is checked by
``engine/input_processor.py``, which knows the model.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, TypeVar

from pyvt import other_names
from pyvt.errors import RequestError, did_you_mean
from pyvt.plain_numbers import plain

Made = TypeVar("Made")

MAX_LOGPROBS = 20
MAX_ANSWERS = 128
# Of a list of texts: each of them is looked at for every token, while other requests wait.
MAX_STRINGS = 1024
MIN_TEMPERATURE = 1e-5
# Further out logits are no finite numbers any more.
MIN_REPETITION, MAX_REPETITION = 0.01, 100.0
POOLINGS = ("last", "mean")
_ID_LISTS = ("allowed_token_ids", "banned_token_ids", "stop_token_ids", "forced_token_ids")


def _help(text: str) -> dict[str, str]:
    return {"help": text}


def _names_unknown_settings(cls: type[Made]) -> type[Made]:
    """Make a class say which settings it has, where it is made with another one."""
    make: Callable[..., None] = cls.__init__
    known = frozenset(cls.__dataclass_fields__)  # type: ignore[attr-defined]

    @wraps(make)
    def __init__(self: Made, *args: Any, **settings: Any) -> None:
        if args:
            raise RequestError(f"[request] {cls.__name__}: expected settings by name, got {args}")
        if not known.issuperset(settings):
            name = next(name for name in settings if name not in known)
            raise RequestError(
                f"[request] {name}: is no setting of {cls.__name__}; "
                f"{other_names.SAMPLING.get(name) or did_you_mean(name, known)}",
                param=name,
                code="unknown_parameter",
            )
        make(self, **settings)

    cls.__init__ = __init__  # type: ignore[assignment]
    return cls


@_names_unknown_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What the text of a request must be; exactly one of the first six fields is given.

    Names are those of vLLM; ``strict``, ``begin_after``, ``text_ends``, ``free_text`` and
    ``close_within_budget`` are pyvt's.

    Attributes:
        json: a JSON schema, as text or as an object; properties come in its order.
        json_object: any JSON object.
        regex: a regular expression of the whole text, without look-around and backreferences.
        choice: the text is one of these.
        grammar: a Lark grammar with a rule ``start``, or a GBNF grammar with a rule ``root``.
        structural_tag: free text in which a trigger begins a tag; an object, or its text, with
            ``structures``, a list of ``{"begin", "schema", "end"}``, and ``triggers``, of which one
            begins each ``begin``.
        disable_any_whitespace: JSON without spaces; otherwise at most 8 in a row.
        disable_additional_properties: objects take no properties that the schema does not name.
        whitespace_pattern: a regular expression of the spaces in JSON.
        strict: refuse a schema with keywords that cannot be honoured; otherwise they are left out,
            and a warning names them.
        begin_after: free text up to this mark comes first, such as ``</think>``.
        text_ends: marks that end free texts inside of a grammar; they help to close it in time.
        free_text: the grammar is about parts of a text that may end anywhere else, as structural
            tags are.
        close_within_budget: bring the text to its end before ``max_tokens``.

    Raises:
        RequestError: ``param`` is ``structured_outputs``.
    """

    json: str | Mapping[str, Any] | bool | None = None
    json_object: bool = False
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    strict: bool = True
    begin_after: str | None = None
    text_ends: Sequence[str] = ()
    free_text: bool = False
    close_within_budget: bool = True

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) not in (None, False)]
        if self.json is False:
            given.append("json")
        if len(given) != 1:
            raise _bad_structure(f"one of {', '.join(_KINDS)}", given)
        for name in ("regex", "grammar", "whitespace_pattern", "begin_after"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise _bad_structure("a text of at least one character", value, name)
        texts = (self.regex, self.grammar, self.whitespace_pattern, self.begin_after)
        if any(_has_lone_surrogate(text) for text in texts if text is not None):
            raise _bad_structure("Unicode text", "a lone surrogate")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _bad_structure("true or false", getattr(self, name), name)
        if self.choice is not None:
            object.__setattr__(self, "choice", _choices(self.choice))
        object.__setattr__(self, "text_ends", _strings("structured_outputs", self.text_ends))
        for name in ("json", "structural_tag"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _json_text(name, getattr(self, name)))
        if self.structural_tag is not None:
            _check_tags(self.structural_tag)

    @classmethod
    def of_request(cls, response_format: Any, given: Any) -> "StructuredOutputsParams | None":
        """Return what a body asks of its text, None for free text.

        Args:
            response_format: OpenAI's ``response_format``, None where it is absent.
            given: ``structured_outputs``, an object with the fields of this class but those that
                pyvt sets itself, or None.

        Raises:
            RequestError: one of them is none, or both are given.
        """
        form = _response_format(response_format)
        if given is None:
            return form
        if form is not None:
            raise _bad_format("it or structured_outputs, not both")
        if not isinstance(given, Mapping):
            raise _bad_structure("an object", given)
        names = [name for name in cls.__dataclass_fields__ if name not in _NOT_OF_REQUESTS]
        for name in given:
            if name not in names:
                raise _bad_structure(f"{', '.join(names)}", name)
        return cls(**{name: value for name, value in given.items() if value is not None})

    def without_request_settings(self) -> "StructuredOutputsParams":
        """Return what the grammar depends on."""
        return replace(self, close_within_budget=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningBudget:
    """How long a model may reason before it answers.

    Attributes:
        max_tokens: most tokens of the reasoning, from 0.
        opening, closing: what surrounds it in the model's text.
        closing_text: what the model must write when the budget is used up; has ``closing`` in it.
        is_open: whether the prompt has opened it.
    """

    max_tokens: int
    opening: str = "<think>"
    closing: str = "</think>"
    closing_text: str = "\n</think>\n\n"
    is_open: bool = False

    def __post_init__(self) -> None:
        _integer("reasoning_budget", self.max_tokens, 0, None)
        for text in (self.opening, self.closing, self.closing_text):
            if not isinstance(text, str) or _has_lone_surrogate(text):
                raise _error("reasoning_budget", "Unicode texts as marks", text)
        if not isinstance(self.is_open, bool):
            raise _error("reasoning_budget", "true or false for is_open", self.is_open)
        if not self.closing or self.closing not in self.closing_text:
            raise _error("reasoning_budget", f"a text with {self.closing!r}", self.closing_text)


_KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
# What is set for the text around calls and reasoning, and for tests.
_NOT_OF_REQUESTS = ("begin_after", "text_ends", "free_text", "close_within_budget")
_FLAGS = (
    *("json_object", "disable_any_whitespace", "disable_additional_properties"),
    *("strict", "free_text", "close_within_budget"),
)


def _bad_structure(expected: str, got: Any, name: str = "") -> RequestError:
    error = _error("structured_outputs" + (f".{name}" if name else ""), expected, got)
    error.param = "structured_outputs"
    return error


def _response_format(form: Any) -> StructuredOutputsParams | None:
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object", "schema": dict() as schema}:
            return StructuredOutputsParams(json=schema, strict=False)
        case {"type": "json_object"}:
            return StructuredOutputsParams(json_object=True)
        case {"type": "json_schema", "json_schema": {"schema": dict() | bool() as schema} as spec}:
            return StructuredOutputsParams(json=schema, strict=spec.get("strict") is True)
        case {"type": "json_schema"}:
            raise _bad_format("json_schema with a schema")
        case {"type": "structural_tag"}:
            tag = {name: value for name, value in form.items() if name != "type"}
            return StructuredOutputsParams(structural_tag=tag)
    raise _bad_format("the type text, json_object, json_schema or structural_tag")


def _bad_format(expected: str) -> RequestError:
    return RequestError(
        f"[request] response_format: expected {expected}",
        param="response_format",
        code="unsupported_value",
    )


def _choices(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and bool(value)
    if not is_list or not all(isinstance(word, str) for word in value):
        raise _bad_structure("a list of at least one string", value, "choice")
    if any(map(_has_lone_surrogate, value)):
        raise _bad_structure("Unicode text", "a lone surrogate", "choice")
    return tuple(value)


def _has_lone_surrogate(text: str) -> bool:
    return any("\ud800" <= sign <= "\udfff" for sign in text)


def _json_text(name: str, value: Any) -> str:
    """Return JSON as text; what is given as text is checked and kept in the order it has."""
    try:
        loaded = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(loaded, ensure_ascii=False, allow_nan=False)
        text.encode()
    except (ValueError, TypeError) as error:
        raise _bad_structure("JSON of Unicode text", value, name) from error
    except RecursionError as error:
        raise _bad_structure("JSON that is not nested so deeply", "more levels", name) from error
    return text


def _check_tags(text: Any) -> None:
    spec = json.loads(text)
    tags = spec.get("structures") if isinstance(spec, dict) else None
    triggers = spec.get("triggers") if isinstance(spec, dict) else None
    for name, items in (("structures", tags), ("triggers", triggers)):
        if not isinstance(items, list) or not items:
            raise _bad_structure("a list of at least one entry", items, f"structural_tag.{name}")
    for trigger in triggers or ():
        if not isinstance(trigger, str) or not trigger:
            raise _bad_structure("texts", trigger, "structural_tag.triggers")
    for tag in tags or ():
        is_tag = isinstance(tag, dict) and isinstance(tag.get("schema"), (dict, bool))
        if not is_tag or not all(isinstance(tag.get(name), str) for name in ("begin", "end")):
            expected = "an object with begin, schema and end"
            raise _bad_structure(expected, tag, "structural_tag.structures")
        if not any(tag["begin"].startswith(trigger) for trigger in triggers or ()):
            raise _bad_structure("a begin with a trigger", tag["begin"], "structural_tag")


@_names_unknown_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends.

    Raises:
        RequestError: a value has the wrong type or lies outside its range; ``param`` names it.
    """

    max_tokens: int | None = field(
        default=None,
        metadata=_help("most new tokens, at least 1; none: what is left of the context"),
    )
    temperature: float = field(
        default=1.0, metadata=_help("0 takes the most likely token; otherwise at least 1e-5")
    )
    top_p: float = field(
        default=1.0,
        metadata=_help("smallest set of tokens with this probability in sum, above 0 up to 1"),
    )
    top_k: int = field(default=0, metadata=_help("this many most likely tokens; 0 or -1: all"))
    min_p: float = field(
        default=0.0,
        metadata=_help("least probability as a share of the most likely token's, 0 to 1"),
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=_help("divides logits of tokens that occurred, 0.01 to 100; 1 is off"),
    )
    presence_penalty: float = field(
        default=0.0, metadata=_help("taken from logits of tokens already generated, -2 to 2")
    )
    frequency_penalty: float = field(
        default=0.0, metadata=_help("taken from logits once per generated occurrence, -2 to 2")
    )
    logit_bias: Mapping[int, float] | None = field(
        default=None, metadata=_help("added to logits, by token id, -100 to 100")
    )
    allowed_token_ids: Sequence[int] | None = field(
        default=None, metadata=_help("only these ids may be generated")
    )
    banned_token_ids: Sequence[int] = field(
        default=(), metadata=_help("these ids are never generated")
    )
    bad_words: Sequence[str] = field(
        default=(),
        metadata=_help("texts never generated: the token that would complete one is banned"),
    )
    min_tokens: int = field(default=0, metadata=_help("no end of the text before this many tokens"))
    seed: int | None = field(
        default=None,
        metadata=_help("same seed, same tokens, whatever runs beside; none: a random seed"),
    )
    stop: str | Sequence[str] = field(
        default=(), metadata=_help("the text ends before the first of these strings")
    )
    stop_token_ids: Sequence[int] = field(
        default=(), metadata=_help("ids that end the text, beside the model's own")
    )
    include_stop_str_in_output: bool = field(
        default=False, metadata=_help("keep what ended the text: the stop string or end token")
    )
    ignore_eos: bool = field(
        default=False, metadata=_help("go on when the model says that the text ends")
    )
    logprobs: int | None = field(
        default=None, metadata=_help("log probabilities of this many best tokens, 0 to 20")
    )
    prompt_logprobs: int | None = field(
        default=None,
        metadata=_help("the same for the tokens of the prompt, which is then computed whole"),
    )
    prompt_pooling: str | None = field(
        default=None,
        metadata=_help(
            "a vector of the prompt from its hidden states: last (of its last token) or mean; the "
            "prompt is then computed whole"
        ),
    )
    skip_special_tokens: bool = field(
        default=True, metadata=_help("leave special tokens out of the text")
    )
    structured_outputs: StructuredOutputsParams | None = field(
        default=None, metadata=_help("what the text must be: a schema, a grammar, one of a list")
    )
    reasoning_budget: ReasoningBudget | None = field(
        default=None, metadata=_help("how many tokens the model may reason before it answers")
    )
    forced_token_ids: Sequence[int] = field(
        default=(), metadata=_help("tokens that come first, whatever the model says; for tests")
    )
    n: int = field(
        default=1, metadata=_help("answers per prompt, 1 to 128, each with its own seed")
    )
    best_of: int | None = field(
        default=None, metadata=_help("answers to choose from; only as many as n, for old clients")
    )

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if (own := plain(value)) is not value:
                object.__setattr__(self, name, own)
        self._check_counts()
        self._check_numbers()
        for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise _error(name, "true or false", getattr(self, name))
        if not isinstance(self.structured_outputs, StructuredOutputsParams | None):
            raise _error("structured_outputs", "StructuredOutputsParams", self.structured_outputs)
        if not isinstance(self.reasoning_budget, ReasoningBudget | None):
            raise _error("reasoning_budget", "ReasoningBudget", self.reasoning_budget)
        for name in _ID_LISTS:
            object.__setattr__(self, name, _token_ids(name, getattr(self, name)))
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise _error("allowed_token_ids", "at least one id or none", ())
        for name in ("stop", "bad_words"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))

    def _check_counts(self) -> None:
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 1, None)
        _integer("top_k", self.top_k, -1, None)
        _integer("min_tokens", self.min_tokens, 0, self.max_tokens)
        if self.seed is not None:
            _integer("seed", self.seed, -(2**63), 2**64 - 1)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _integer(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.prompt_pooling not in (None, *POOLINGS):
            raise _error("prompt_pooling", " or ".join(POOLINGS), self.prompt_pooling)
        _integer("n", self.n, 1, MAX_ANSWERS)
        if self.best_of is not None:
            _integer("best_of", self.best_of, 1, None)
            if self.best_of != self.n:
                raise _not_yet("best_of", f"n={self.n}", self.best_of)

    def _check_numbers(self) -> None:
        _number("temperature", self.temperature, 0.0, None)
        if 0 < self.temperature < MIN_TEMPERATURE:
            raise _error(
                "temperature", f"0 (greedy) or at least {MIN_TEMPERATURE}", self.temperature
            )
        _number("top_p", self.top_p, 0.0, 1.0, is_above=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, MIN_REPETITION, MAX_REPETITION)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0


def _error(param: str, expected: str, got: Any) -> RequestError:
    text = repr(got)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return RequestError(
        f"[sampling] {param}: expected {expected}, got {shown}", param=param, code="invalid_value"
    )


def _not_yet(param: str, expected: str, got: int) -> RequestError:
    return RequestError(
        f"[sampling] {param}: expected {expected}, got {got!r}; other values are not supported yet",
        param=param,
        code="unsupported_value",
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(param: str, value: Any, low: int, high: int | None) -> None:
    expected = f"an integer of at least {low}" if high is None else f"an integer, {low} to {high}"
    if not _is_integer(value) or value < low or (high is not None and value > high):
        raise _error(param, expected, value)


def _number(
    param: str, value: Any, low: float, high: float | None, *, is_above: bool = False
) -> None:
    above = "above" if is_above else "from"
    expected = f"a finite number {above} {low:g}" + ("" if high is None else f" up to {high:g}")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _error(param, expected, value)
    # An int beyond the range of a double would overflow in isfinite.
    if (isinstance(value, int) and abs(value) > 2**63) or not math.isfinite(value):
        raise _error(param, expected, value)
    if value < low or (is_above and value == low) or (high is not None and value > high):
        raise _error(param, expected, value)


def _token_ids(param: str, value: Any) -> tuple[int, ...] | None:
    if value is None:
        return None if param == "allowed_token_ids" else ()
    if isinstance(value, (str, bytes)) or not isinstance(value, (Sequence, set, frozenset)):
        raise _error(param, "a list of token ids", value)
    token_ids = tuple(plain(list(value)))
    for token_id in token_ids:
        if not _is_integer(token_id) or token_id < 0:
            raise _error(param, "token ids, integers of at least 0", token_id)
    return token_ids


def _strings(param: str, value: Any) -> tuple[str, ...]:
    strings = () if value is None else (value,) if isinstance(value, str) else value
    if not isinstance(strings, Sequence) or isinstance(strings, bytes):
        raise _error(param, "a string or a list of strings", value)
    if len(strings) > MAX_STRINGS:
        raise _error(param, f"at most {MAX_STRINGS} strings", len(strings))
    for string in strings:
        if not isinstance(string, str) or not string:
            raise _error(param, "strings of at least one character", string)
    return tuple(strings)


def _logit_bias(value: Any) -> dict[int, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise _error("logit_bias", "a map from token id to number", value)
    biases = {plain(token_id): plain(bias) for token_id, bias in value.items()}
    for token_id, bias in biases.items():
        if not _is_integer(token_id) or token_id < 0:
            raise _error("logit_bias", "token ids, integers of at least 0", token_id)
        _number("logit_bias", bias, -100.0, 100.0)
    return biases
