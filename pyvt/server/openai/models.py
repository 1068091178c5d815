"""GET /v1/models and /v1/models/{id}."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from pyvt.server.state import ServerState, state_of


async def list_models(request: Request) -> Response:
    """List the names of the one model; before its first load without its context and the rest."""
    state = state_of(request)
    return JSONResponse({"object": "list", "data": [_model(state, name) for name in state.names]})


async def get_model(request: Request) -> Response:
    """Tell of one name; ids may have slashes."""
    state = state_of(request)
    return JSONResponse(_model(state, state.model_name(request.path_params["model"])))


def _model(state: ServerState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(state.started_s),
        "owned_by": "pyvt",
        "root": state.names[0],
        "parent": None,
        "status": state.status,
        **state.card,
    }
