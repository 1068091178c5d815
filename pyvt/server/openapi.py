"""GET /openapi.json, made of the table of routes and the models of their bodies."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import pyvt
from pyvt.server.middleware import PUBLIC_PATHS
from pyvt.server.narrowing import ModelFacts, narrow
from pyvt.server.routes import ROUTES, RouteRow
from pyvt.server.state import state_of

_REFERENCE = "#/components/schemas/{model}"
# What any route may answer, beside 200.
_ERRORS = {
    400: "the request is wrong",
    401: "the key is missing or wrong",
    403: "the host is not allowed",
    404: "there is no such model",
    408: "the body does not come",
    413: "the body is too large",
    415: "the body is no JSON",
    429: "the queue is full",
    500: "a fault of the server",
    503: "the model is loaded, or the server is stopped",
    504: "the deadline has passed",
}
_TEXT_PATHS = {"/": "text/html", "/metrics": "text/plain"}


async def openapi(request: Request) -> Response:
    """Answer the description of all routes."""
    state = state_of(request)
    facts = ModelFacts(names=tuple(state.names))
    if state.llm is not None:
        limits = state.llm.engine.input_processor.limits
        facts = replace(facts, vocab_size=limits.vocab_size, max_model_len=limits.max_model_len)
    return JSONResponse(document(ROUTES, facts))


def document(rows: Sequence[RouteRow], facts: ModelFacts | None = None) -> dict[str, Any]:
    """Return the description of routes, of a server with a model where ``facts`` are given."""
    models = [row.model for row in rows if row.model is not None]
    keyed: list[Any] = [(model, "validation") for model in dict.fromkeys(models)]
    _, schemas = models_json_schema(keyed, ref_template=_REFERENCE)
    narrow(schemas.get("$defs", {}), facts or ModelFacts())
    paths: dict[str, Any] = {}
    for row in rows:
        path = row.path.replace(":path}", "}")
        paths.setdefault(path, {})[row.method.lower()] = _operation(row)
    error = {
        "type": "object",
        "required": ["error"],
        "properties": {"type": {"type": "string"}, "error": {"type": "object"}},
    }
    key = {"type": "http", "scheme": "bearer"}
    return {
        "openapi": "3.1.0",
        "info": {"title": "pyvt", "version": pyvt.__version__},
        "paths": paths,
        "components": {
            "schemas": {**schemas.get("$defs", {}), "Error": error},
            "securitySchemes": {"key": key},
        },
    }


def _operation(row: RouteRow) -> dict[str, Any]:
    name = row.handler.__name__
    kind = _TEXT_PATHS.get(row.path, "application/json")
    content: dict[str, Any] = {kind: {"schema": {} if kind[0] == "t" else {"type": "object"}}}
    if row.refusal_event is not None:
        content["text/event-stream"] = {}
    responses: dict[str, Any] = {"200": {"description": "the answer", "content": content}}
    refusal = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    for status, text in _ERRORS.items():
        responses[str(status)] = {"description": text, "content": refusal}
    if row.path in ("/ready", "/health"):
        told = {"application/json": {"schema": {"type": "object"}}}
        responses["503"] = {"description": "why not yet", "content": told}
        responses["500"] = {"description": "the engine is dead", "content": told}
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": (row.handler.__doc__ or name).splitlines()[0],
        "responses": responses,
        "security": [] if row.path in PUBLIC_PATHS else [{"key": []}, {}],
    }
    if "{model" in row.path:
        operation["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
        ]
    if row.model is not None:
        schema = {"$ref": _REFERENCE.format(model=row.model.__name__)}
        body = {"required": True, "content": {"application/json": {"schema": schema}}}
        operation["requestBody"] = body
    return operation
