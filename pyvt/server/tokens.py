"""Texts and tokens without generating: /tokenize, /detokenize, and a chat rendered for a look."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyvt.server.chats import PreparedChat, prepare_chat
from pyvt.server.conversation import render_conversation
from pyvt.server.errors import request_error
from pyvt.server.fields import RequestModel, checked, told
from pyvt.server.openai.schema import ChatRequest, Message, TemplateFields, Tool
from pyvt.server.state import key_salt_of, state_of
from pyvt.server.unread import unread_settings


class TokenizeRequest(TemplateFields):
    """POST /tokenize: a prompt, or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None  # type: ignore[assignment]
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(RequestModel):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


async def tokenize(request: Request) -> Response:
    """Answer the ids of a prompt, or of a conversation as it would be run."""
    state = state_of(request)
    asked = checked(TokenizeRequest, await state.body(request))
    state.model_name(asked.model)
    processor = state.ready_llm().engine.input_processor

    def work() -> tuple[list[int], tuple[str, ...]]:
        if (asked.prompt is None) == (asked.messages is None):
            raise request_error(
                "[request] prompt: expected either prompt or messages", param="prompt"
            )
        if asked.prompt is not None:
            adds = asked.add_special_tokens is not False
            return processor.tokenizer.encode(asked.prompt, add_special_tokens=adds), ()
        speech = state.speech(processor)
        ids = list(processor.tokenize(render_conversation(processor, asked, speech.dialect)))
        return ids, unread_settings(processor, speech.tags, asked, {})

    ids, unread = await state.ready_llm().run_input(work)
    body: dict[str, Any] = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": processor.limits.max_model_len,
        "token_strs": [processor.tokenizer.token_text(i) for i in ids]
        if asked.return_token_strs
        else None,
    }
    if warnings := [*asked.warnings(), *unread]:
        body["warnings"] = warnings
    return JSONResponse(body)


async def detokenize(request: Request) -> Response:
    """Answer the text of ids."""
    state = state_of(request)
    asked = checked(DetokenizeRequest, await state.body(request))
    state.model_name(asked.model)
    processor = state.ready_llm().engine.input_processor
    vocab_size = processor.limits.vocab_size
    for token_id in asked.tokens:
        if not 0 <= token_id < vocab_size:
            raise request_error(
                f"[request] tokens: expected ids from 0 up to {vocab_size - 1}, got {token_id}",
                param="tokens",
                code="invalid_value",
            )
    skips = bool(asked.skip_special_tokens)
    text = await state.ready_llm().run_input(
        lambda: processor.tokenizer.decode(asked.tokens, skip_special_tokens=skips)
    )
    return JSONResponse({"prompt": text, **told(asked)})


async def render(request: Request) -> Response:
    """Answer what a chat's prompt is, how many of its tokens are cached, and whether it fits.

    Nothing is run; ``cached_tokens`` is what a request would find now.
    """
    state = state_of(request)
    chat = checked(ChatRequest, await state.body(request))
    state.model_name(chat.model)
    processor = state.ready_llm().engine.input_processor

    def work() -> tuple[PreparedChat, tuple[int, ...]]:
        prepared = prepare_chat(state, chat)
        return prepared, processor.tokenize(prepared.prompt)

    llm = state.ready_llm()
    prepared, ids = await llm.run_input(work)
    tenant = key_salt_of(request)
    num_cached = await llm.call(
        lambda engine: engine.core.scheduler.num_findable_tokens(
            ids, tenant=tenant, cache_salt=chat.cache_salt
        )
    )
    max_tokens = chat.max_completion_tokens or chat.max_tokens
    room = processor.limits.max_model_len - len(ids)
    body = {
        "prompt": prepared.prompt.text,
        "token_ids": list(ids),
        "count": len(ids),
        "cached_tokens": num_cached,
        "max_model_len": processor.limits.max_model_len,
        "room": max(room, 0),
        "fits": room >= max(max_tokens or 1, 1),
        "warnings": [*chat.warnings(), *prepared.warnings],
    }
    return JSONResponse(body)
