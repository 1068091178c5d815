"""The table of routes: path, handler, and the model of its body, from which the docs are made."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from pyvt.server.anthropic.messages import count_tokens, messages
from pyvt.server.anthropic.messages import refusal_event as messages_refusal
from pyvt.server.anthropic.schema import CountRequest, MessagesRequest
from pyvt.server.fields import RequestModel
from pyvt.server.openai.chat import chat_completions
from pyvt.server.openai.completions import completions
from pyvt.server.openai.embeddings import EmbeddingsRequest, embeddings
from pyvt.server.openai.events import data_event
from pyvt.server.openai.models import get_model, list_models
from pyvt.server.openai.responses import refusal_event as responses_refusal
from pyvt.server.openai.responses import responses
from pyvt.server.openai.responses_schema import ResponsesRequest
from pyvt.server.openai.schema import ChatRequest, CompletionRequest
from pyvt.server.page import MarkdownRequest, markdown, page
from pyvt.server.service import (
    AbortRequest,
    abort,
    health,
    metrics,
    ready,
    reset_prefix_cache,
    version,
)
from pyvt.server.tokens import DetokenizeRequest, TokenizeRequest, detokenize, render, tokenize

Handler = Callable[[Request], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True)
class RouteRow:
    """One route.

    Attributes:
        refusal_event: for an answer that may be a stream of events: the event of a body that
            refuses, for a stream that has begun.
        needs_model: whether a request loads a model that was unloaded.
    """

    method: str
    path: str
    handler: Handler
    model: type[RequestModel] | None = None
    refusal_event: Callable[[Mapping[str, Any]], bytes] | None = None
    needs_model: bool = True


ROUTES = (
    RouteRow("POST", "/v1/chat/completions", chat_completions, ChatRequest, data_event),
    RouteRow("POST", "/v1/completions", completions, CompletionRequest, data_event),
    RouteRow("POST", "/v1/responses", responses, ResponsesRequest, responses_refusal),
    RouteRow("POST", "/v1/embeddings", embeddings, EmbeddingsRequest),
    RouteRow("POST", "/v1/messages", messages, MessagesRequest, messages_refusal),
    RouteRow("POST", "/v1/messages/count_tokens", count_tokens, CountRequest),
    RouteRow("POST", "/v1/chat/completions/render", render, ChatRequest),
    RouteRow("GET", "/v1/models", list_models, needs_model=False),
    RouteRow("GET", "/v1/models/{model:path}", get_model, needs_model=False),
    RouteRow("POST", "/tokenize", tokenize, TokenizeRequest),
    RouteRow("POST", "/detokenize", detokenize, DetokenizeRequest),
    RouteRow("POST", "/abort", abort, AbortRequest, needs_model=False),
    RouteRow("POST", "/reset_prefix_cache", reset_prefix_cache, needs_model=False),
    RouteRow("GET", "/health", health, needs_model=False),
    RouteRow("GET", "/ready", ready, needs_model=False),
    RouteRow("GET", "/version", version, needs_model=False),
    RouteRow("GET", "/metrics", metrics, needs_model=False),
    RouteRow("GET", "/", page, needs_model=False),
    RouteRow("POST", "/ui/markdown", markdown, MarkdownRequest, needs_model=False),
)
