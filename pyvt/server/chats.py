"""A chat on its way into the engine, for every route that has one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import Request

from pyvt.errors import RequestError
from pyvt.sampling_params import MAX_LOGPROBS, ReasoningBudget, SamplingParams
from pyvt.server.answer.parser import AnswerFormat
from pyvt.server.conversation import conversation
from pyvt.server.errors import WireException, renamed, request_error
from pyvt.server.generation import Generation, needs_stream
from pyvt.server.openai.schema import ChatRequest
from pyvt.server.sampling import sampling_params
from pyvt.server.state import ServerState, state_of
from pyvt.server.structure import chat_form, form_error, form_names
from pyvt.server.unread import unread_settings
from pyvt.tokenizer.base import RenderedPrompt


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat that was rendered and checked."""

    prompt: RenderedPrompt
    params: SamplingParams
    form: AnswerFormat
    warnings: tuple[str, ...] = ()


async def start_chat(
    request: Request,
    chat: ChatRequest,
    *,
    request_id: str,
    is_stream: bool,
    names: Mapping[str, str] | None = None,
) -> Generation:
    """Return a chat that has started: what can be refused has been.

    Args:
        request: the HTTP request.
        chat: the checked request; other APIs translate theirs into one.
        request_id: unique.
        is_stream: whether the client gets each token as it comes.
        names: fields of a chat → fields of the client's request, for errors.

    Raises:
        RequestError, WireException: the chat cannot be served.
    """
    state = state_of(request)
    llm = state.ready_llm()
    try:
        prepared = await llm.run_input(lambda: prepare_chat(state, chat, names))
        try:
            stream = await state.start(
                request,
                chat,
                prepared.prompt,
                prepared.params,
                request_id=request_id,
                is_stream=needs_stream(prepared.form, is_stream=is_stream),
            )
        except RequestError as error:
            named = partial(form_error, error, chat, prepared.form)
            raise await llm.run_input(named) from error
    except (RequestError, WireException) as error:
        raise renamed(renamed(error, _names(chat)), names or {}) from error
    return Generation(
        stream=stream,
        params=prepared.params,
        form=prepared.form,
        metrics=state.metrics,
        form_warnings=prepared.warnings,
    )


def _names(chat: ChatRequest) -> dict[str, str]:
    """Return how a chat calls what the engine has other names for."""
    names = {"prompt": "messages", **form_names(chat)}
    if chat.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def prepare_chat(
    state: ServerState, chat: ChatRequest, names: Mapping[str, str] | None = None
) -> PreparedChat:
    """Return a chat rendered and its parameters checked; call it beside the loop.

    Its warnings call a field by the client's name of it where ``names`` has one.
    """
    llm = state.ready_llm()
    processor = llm.engine.input_processor
    speech = state.speech(processor)
    found = conversation(processor, speech, chat)
    max_tokens = chat.max_tokens
    if chat.max_completion_tokens is not None:
        max_tokens = chat.max_completion_tokens
    dialect = found.form.dialect
    keeps_special = dialect is not None and dialect.needs_special
    form = chat_form(chat, found.form, processor)
    params = sampling_params(
        chat,
        llm.engine.default_params,
        max_tokens=max_tokens,
        logprobs=_num_top(chat),
        skip_special_tokens=False if keeps_special else None,
        structured_outputs=form.structure,
        reasoning_budget=_budget(chat, found.form),
    )
    if found.form.tags is not None:
        # The parser looks for them, in the content alone.
        params = replace(params, stop=())
    unread = unread_settings(processor, speech.tags, chat, names or {})
    return PreparedChat(found.prompt, params, found.form, (*form.warnings, *unread))


def _budget(chat: ChatRequest, form: AnswerFormat) -> ReasoningBudget | None:
    """Return the bound of the reasoning; None where there is none, or no reasoning to bound."""
    tags, most = form.tags, chat.thinking_token_budget
    if most is None or tags is None or form.start == "closed":
        return None
    return ReasoningBudget(
        max_tokens=most,
        opening=tags.opening,
        closing=tags.closing,
        closing_text=tags.closing_text,
        is_open=form.start == "open",
    )


def _num_top(chat: ChatRequest) -> int | None:
    """Return how many alternatives of each token are told; None without log probabilities."""
    if chat.top_logprobs is not None and not chat.logprobs:
        raise request_error(
            "[request] top_logprobs: expected logprobs to be true with it", param="top_logprobs"
        )
    if not chat.logprobs:
        return None
    num_top = chat.top_logprobs or 0
    if not 0 <= num_top <= MAX_LOGPROBS:
        raise request_error(
            f"[request] top_logprobs: expected 0 to {MAX_LOGPROBS}, got {num_top}",
            param="top_logprobs",
        )
    return num_top
