"""InputProcessor: renders, tokenises and checks a request against the model's limits.

Whoever wants a prompt rendered, tokenised or counted asks here; no one else owns a tokenizer. A
prompt is never truncated: one that does not fit is refused with both numbers.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pyvt.errors import RequestError
from pyvt.messages import NO_CONSTRAINTS, Constraints, EngineCoreRequest, Grammar
from pyvt.plain_numbers import plain
from pyvt.sampling_params import SamplingParams
from pyvt.tokenizer.base import RENDER_ARGUMENTS, RenderedPrompt, Tokenizer, check_unicode

if TYPE_CHECKING:
    from pyvt.structured import GrammarCompiler
    from pyvt.tokenizer import ChatTemplate

T = TypeVar("T")
Message = Mapping[str, Any]
Prompt = str | Sequence[int] | RenderedPrompt | Mapping[str, Any]

MAX_TIMEOUT_S = 10**9
MAX_SALT_CHARS = 256

_PROMPT_KEYS = ("prompt", "prompt_token_ids")
# Sequences of integers that are no token ids.
_BYTES = (bytes, bytearray, memoryview)
_ID_FIELDS = (
    *("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"),
    "forced_token_ids",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLimits:
    """What the model allows.

    Attributes:
        vocab_size: ids lie below it; rows of the logits that no token uses are not counted.
        max_model_len: most tokens of prompt and answer together.
        eos_token_ids: ids that end a text: the model's, its generation config's, the tokenizer's.
        num_logits: V, rows that no token uses included; 0 where there are none.
    """

    vocab_size: int
    max_model_len: int
    eos_token_ids: frozenset[int]
    num_logits: int = 0


class InputProcessor:
    """Makes ``EngineCoreRequest`` of prompts and messages."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        chat_template: Callable[[], "ChatTemplate"] | None,
        limits: InputLimits,
        grammars: Callable[[], "GrammarCompiler"] | None = None,
    ) -> None:
        """Make one.

        ``chat_template`` is called at the first chat, ``grammars`` at the first request with
        ``structured_outputs``; without them such requests are refused.
        """
        self.grammars = None if grammars is None else _once(grammars)
        self.compiler: GrammarCompiler | None = None  # until the first grammar
        self._chat_template = None if chat_template is None else _once(chat_template)
        self.tokenizer = tokenizer
        self.limits = limits

    @property
    def chat_template(self) -> "ChatTemplate | None":
        """The model's templates, None where it has none."""
        return None if self._chat_template is None else self._chat_template()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Return the model's own text of a conversation; a content may be a list of text parts.

        Raises:
            RequestError: the messages have a wrong form, the template refuses them, or the model
                has no chat template.
        """
        template = self.chat_template
        if template is None:
            raise RequestError(
                "[request] messages: the model has no chat template; give a prompt instead",
                param="messages",
                code="unsupported_value",
            )
        _check_messages(messages)
        if not isinstance(chat_template_kwargs or {}, Mapping):
            raise _refused("chat_template_kwargs", "an object", chat_template_kwargs)
        variables = dict(chat_template_kwargs or {})
        for name in variables:
            if not isinstance(name, str):
                raise _refused("chat_template_kwargs", "names", name)
            if name in RENDER_ARGUMENTS:
                raise _refused("chat_template_kwargs", "names that pyvt does not set itself", name)
        return template.render(
            _with_text(messages),
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            **variables,
        )

    def tokenize(self, prompt: Prompt) -> tuple[int, ...]:
        """Return the ids of a prompt; ids that were given are checked.

        Beside text, ids and a rendered conversation it may be ``{"prompt": text}`` or
        ``{"prompt_token_ids": ids}``.

        Raises:
            RequestError: a wrong type, an id outside the vocabulary, a lone surrogate, no tokens.
        """
        if isinstance(prompt, Mapping):
            prompt = _inside(prompt)
        prompt = plain(prompt)
        if isinstance(prompt, RenderedPrompt):
            ids = tuple(self.tokenizer.encode_rendered(prompt))
        elif isinstance(prompt, str):
            check_unicode(prompt, "prompt")
            ids = tuple(self.tokenizer.encode(prompt))
        elif isinstance(prompt, Sequence) and not isinstance(prompt, _BYTES):
            ids = tuple(cast(Sequence[int], prompt))
            if ids and isinstance(ids[0], str):
                raise _refused("prompt", "one prompt, a string or a list of token ids", prompt)
            self._check_ids("prompt", ids)
        else:
            raise _refused("prompt", "a string or a list of token ids", type(prompt).__name__)
        if not ids:
            raise _refused("prompt", "at least one token", prompt)
        if max(ids) >= self.limits.vocab_size:
            raise _refused("prompt", f"text of the model's {self.limits.vocab_size} tokens", prompt)
        return ids

    def process(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        arrival_s: float,
        *,
        priority: int = 0,
        timeout_s: float | None = None,
        waited_s: float = 0.0,
        tenant: str = "",
        cache_salt: str | None = None,
    ) -> EngineCoreRequest:
        """Return a request that the core can take.

        ``max_tokens`` of None becomes what is left of the context; a number that does not fit is
        refused, never lowered. A request without a seed gets a random one. ``timeout_s`` counts
        from ``waited_s`` before the arrival. KV is shared only between requests of one ``tenant``
        and ``cache_salt``.

        Raises:
            RequestError: ``param`` names the field.
        """
        if not isinstance(params, SamplingParams):
            raise _refused("sampling_params", "SamplingParams", params)
        if not isinstance(request_id, str):
            raise _refused("request_id", "a string", request_id)
        _check_urgency(priority, timeout_s)
        _check_salt(cache_salt)
        for name in _ID_FIELDS:
            self._check_ids(name, tuple(getattr(params, name) or ()))
        if isinstance(prompt, Mapping):
            prompt = _inside(prompt)
        ids = self.tokenize(prompt)
        text = prompt if isinstance(prompt, str) else None
        if isinstance(prompt, RenderedPrompt):
            text = prompt.text
        max_tokens = self._max_tokens(len(ids), params)
        if params.min_tokens > max_tokens:
            raise _refused("min_tokens", f"at most max_tokens={max_tokens}", params.min_tokens)
        fresh = int.from_bytes(os.urandom(8), "little")  # ``secrets`` would load OpenSSL for it
        seed = fresh if params.seed is None else params.seed % 2**64
        return EngineCoreRequest(
            request_id=request_id,
            prompt=text,
            prompt_token_ids=ids,
            sampling_params=replace(params, max_tokens=max_tokens, seed=seed),
            eos_token_ids=frozenset() if params.ignore_eos else self.limits.eos_token_ids,
            arrival_s=arrival_s,
            constraints=self._constraints(params, max_tokens),
            priority=priority,
            tenant=tenant,
            cache_salt=cache_salt,
            deadline_s=None if timeout_s is None else arrival_s - waited_s + timeout_s,
        )

    def _constraints(self, params: SamplingParams, max_tokens: int) -> Constraints:
        asked = (params.structured_outputs, params.reasoning_budget, params.bad_words)
        if not any(asked) and not params.forced_token_ids:
            return NO_CONSTRAINTS
        grammar = self._grammar(params, max_tokens)
        size = self.limits.num_logits or self.limits.vocab_size
        # What loads llguidance is loaded by requests that need it.
        if params.reasoning_budget is not None:
            from pyvt.structured.reasoning_budget import BudgetGrammar

            grammar = BudgetGrammar(params.reasoning_budget, self.tokenizer, size, grammar)
        if params.forced_token_ids:
            from pyvt.structured.forced_tokens import ForcedTokens

            grammar = ForcedTokens(tuple(params.forced_token_ids), size, grammar)
        return Constraints(
            bad_words=tuple(dict.fromkeys(self._bad_words(params.bad_words))), grammar=grammar
        )

    def _grammar(self, params: SamplingParams, max_tokens: int) -> Grammar | None:
        if params.structured_outputs is None:
            return None
        if self.grammars is None:
            raise _refused("structured_outputs", "none, this engine has no grammars", "some")
        if params.ignore_eos:
            raise _refused("ignore_eos", "false where a grammar says when the text ends", True)
        self.compiler = self.grammars()
        grammar = self.compiler.compile(params.structured_outputs)
        if grammar.shortest > max_tokens:
            raise RequestError(
                f"[request] max_tokens: structured_outputs needs at least {grammar.shortest} "
                f"tokens, got max_tokens={max_tokens}; raise max_tokens",
                param="max_tokens",
                code="invalid_value",
            )
        return grammar

    def _bad_words(self, words: Sequence[str]) -> Iterator[tuple[int, ...]]:
        """Return the ids of each word as it begins a text and as it follows a space."""
        for word in words:
            check_unicode(word, "bad_words")
            stripped = word.lstrip()
            if not stripped:
                raise _refused("bad_words", "words, not only spaces", word)
            for text in (word, stripped, f" {stripped}"):
                ids = tuple(self.tokenizer.encode(text, add_special_tokens=False))
                if ids and max(ids) < self.limits.vocab_size:
                    yield ids

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        context = self.limits.max_model_len
        if num_prompt_tokens >= context and params.prompt_pooling is not None:
            raise RequestError(
                f"[request] prompt: expected at most {context - 1} tokens in a context of "
                f"{context}, got {num_prompt_tokens}; send a shorter text or raise max_model_len",
                param="prompt",
                code="context_length_exceeded",
            )
        if num_prompt_tokens >= context:
            raise RequestError(
                f"[request] prompt: {num_prompt_tokens} tokens leave no room for an answer in a "
                f"context of {context}; shorten the prompt or raise max_model_len",
                param="prompt",
                code="context_length_exceeded",
            )
        room = context - num_prompt_tokens
        if params.max_tokens is None:
            return room
        if params.max_tokens > room:
            raise RequestError(
                f"[request] max_tokens: {num_prompt_tokens} prompt tokens and "
                f"{params.max_tokens} new ones exceed the context of {context}; "
                f"expected at most {room}",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return params.max_tokens

    def _check_ids(self, param: str, ids: Sequence[Any]) -> None:
        vocab_size = self.limits.vocab_size
        for token_id in ids:
            is_integer = isinstance(token_id, int) and not isinstance(token_id, bool)
            if not is_integer or not 0 <= token_id < vocab_size:
                raise _refused(param, f"token ids from 0 up to {vocab_size - 1}", token_id)


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """Return a call that makes a thing at its first time, however many threads come with it."""
    lock, made = Lock(), cache(make)

    def get() -> T:
        with lock:
            return made()

    return get


def _inside(prompt: Mapping[str, Any]) -> Any:
    """Return the text or the ids that an object holds."""
    found = [prompt[name] for name in _PROMPT_KEYS if name in prompt]
    if len(found) != 1 or len(prompt) != 1:
        raise _refused("prompt", f"an object with {' or '.join(_PROMPT_KEYS)} alone", dict(prompt))
    if isinstance(found[0], str) != ("prompt" in prompt):
        raise _refused("prompt", "text in prompt, ids in prompt_token_ids", dict(prompt))
    return found[0]


def _check_urgency(priority: Any, timeout_s: Any) -> None:
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > 2**31:
        raise _refused("priority", "an integer of 32 bits", priority)
    if timeout_s is None:
        return
    is_number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not is_number or not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise _refused("timeout_s", f"seconds above 0 up to {MAX_TIMEOUT_S}, or none", timeout_s)


def _check_salt(cache_salt: Any) -> None:
    if cache_salt is None:
        return
    is_salt = isinstance(cache_salt, str) and 1 <= len(cache_salt) <= MAX_SALT_CHARS
    if not is_salt or not cache_salt.isprintable():
        raise _refused("cache_salt", f"1 to {MAX_SALT_CHARS} printable characters", cache_salt)


def _check_messages(messages: Any) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise _refused(
            "messages", "a list such as [{'role': 'user', 'content': 'Hello'}]", messages
        )
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise _refused(f"messages[{index}]", "an object", type(message).__name__)
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise _refused(f"messages[{index}].role", "a string", role)
        _check_content(message.get("content"), f"messages[{index}].content")


def _check_content(content: Any, param: str) -> None:
    """Check a text, a list of parts of text, or nothing, as beside tool calls."""
    if content is None:
        return
    if isinstance(content, str):
        check_unicode(content, param)
        return
    if not isinstance(content, Sequence) or isinstance(content, _BYTES):
        raise _refused(param, "a text or a list of parts of text", content)
    for index, part in enumerate(content):
        is_text = isinstance(part, Mapping) and part.get("type") == "text"
        if not is_text or not isinstance(part.get("text"), str):
            raise _refused(f"{param}[{index}]", "a part of type 'text' with its text", part)
        check_unicode(part["text"], f"{param}[{index}].text")


def _with_text(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages whose contents are texts: parts become lines, as most templates want."""
    return [
        {**message, "content": "\n".join(part["text"] for part in message["content"])}
        if isinstance(message.get("content"), Sequence) and not isinstance(message["content"], str)
        else message
        for message in messages
    ]


def _refused(param: str, expected: str, got: Any) -> RequestError:
    text = repr(got)
    shown = text if len(text) <= 80 else f"{text[:77]}..."
    return RequestError(
        f"[request] {param}: expected {expected}, got {shown}", param=param, code="invalid_value"
    )
