"""The application: routes, middleware, and what becomes of an error."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from pyvt.errors import EngineDeadError, PyvtError, RequestError
from pyvt.log import get_logger
from pyvt.server.errors import WireException, wire_error
from pyvt.server.middleware import Cors, HostCheck, KeyCheck, RequestLog, error_response
from pyvt.server.openapi import openapi
from pyvt.server.routes import ROUTES, Handler
from pyvt.server.sleep import awake
from pyvt.server.sse import ClientGoneError
from pyvt.server.state import ServerState

log = get_logger(__name__)


def create_app(state: ServerState) -> Starlette:
    """Return the application of a server."""
    config = state.config
    app = Starlette(
        routes=[
            *(
                Route(row.path, _Endpoint(row.handler, row.needs_model), methods=[row.method])
                for row in ROUTES
            ),
            Route("/openapi.json", _Endpoint(openapi, needs_model=False), methods=["GET"]),
        ],
        middleware=[
            Middleware(RequestLog, is_logging=not config.disable_access_log),
            Middleware(HostCheck, allowed=_hosts(state)),
            Middleware(Cors, allowed=config.allowed_origins),
            Middleware(KeyCheck, keys=config.api_key),
        ],
        exception_handlers={HTTPException: _on_http_error},
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


class _Endpoint:
    """Runs a handler; what it raises becomes an answer in the shape of its path."""

    def __init__(self, handler: Handler, needs_model: bool) -> None:
        self.handler = handler
        self.needs_model = needs_model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.needs_model:
            await self._answer(scope, receive, send)
            return
        try:
            async with awake(scope["app"].state.server):
                await self._answer(scope, receive, send)
        except PyvtError as error:  # the model could not be loaded again
            log.error("request %s: %s", scope["state"]["request_id"], error)
            answer = error_response(wire_error(error), scope["path"])
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self.handler(request)
        except (PyvtError, WireException) as error:
            if isinstance(error, EngineDeadError):
                log.error("request %s: %s", scope["state"]["request_id"], error)
            response = error_response(wire_error(error), scope["path"])
        except ClientGoneError:
            return
        await response(scope, receive, send)


def _hosts(state: ServerState) -> tuple[str, ...]:
    """Return the names that a Host header may have."""
    config = state.config
    return (*config.allowed_hosts, config.host)


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Answer a path or a method that there is not."""
    assert isinstance(error, HTTPException), "it is registered for no other"
    path = request.url.path[:200]
    refusal = RequestError(
        f"[server] path: {path!r} does not exist; GET /v1/models lists the model", code="not_found"
    )
    if error.status_code == 405:
        refusal = RequestError(
            f"[server] method: {request.method} is not allowed for {path!r}",
            code="method_not_allowed",
        )
    response = error_response(wire_error(refusal), path)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
