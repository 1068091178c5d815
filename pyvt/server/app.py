"""The application: routes, middleware, and what becomes of an error."""

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pyvt.errors import EngineDeadError, PyvtError, RequestError
from pyvt.log import get_logger
from pyvt.server.errors import WireException, wire_error
from pyvt.server.middleware import Cors, HostCheck, KeyCheck, RequestLog, error_response
from pyvt.server.openapi import openapi
from pyvt.server.routes import ROUTES, RouteRow
from pyvt.server.sleep import awake
from pyvt.server.sse import ClientGoneError
from pyvt.server.state import ServerState
from pyvt.server.waking import AnswerWhenAwake

log = get_logger(__name__)

DESCRIPTION = RouteRow("GET", "/openapi.json", openapi, needs_model=False)


def create_app(state: ServerState) -> Starlette:
    """Return the application of a server."""
    config = state.config
    # No web page reaches a Unix socket, and clients of one may name any host.
    hosts = [Middleware(HostCheck, allowed=_hosts(state))] if config.uds is None else []
    app = _App(
        routes=[
            *(Route(row.path, _Endpoint(row), methods=[row.method]) for row in ROUTES),
            Route(DESCRIPTION.path, _Endpoint(DESCRIPTION), methods=["GET"]),
        ],
        middleware=[
            Middleware(RequestLog, is_logging=not config.disable_uvicorn_access_log),
            *hosts,
            Middleware(Cors, allowed=config.allowed_origins),
            Middleware(KeyCheck, keys=config.api_key),
        ],
    )
    app.router.redirect_slashes = False
    app.state.server = state
    return app


class _App(Starlette):
    """Starlette without its two middlewares for errors: each would cost every chunk a call.

    ``RequestLog`` answers what nobody caught, ``_Paths`` what no route takes.
    """

    def build_middleware_stack(self) -> ASGIApp:
        """Return the routes behind the server's own middleware."""
        app: ASGIApp = _Paths(self.router)
        for middleware, args, kwargs in reversed(self.user_middleware):
            app = middleware(app, *args, **kwargs)
        return app


class _Paths:
    """Answers a path or a method that there is not."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope, receive, send)
        except HTTPException as error:
            await _no_route(scope, error)(scope, receive, send)


class _Endpoint:
    """Runs a handler; what it raises becomes an answer in the shape of its path."""

    def __init__(self, row: RouteRow) -> None:
        self.row = row

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.row.needs_model:
            await self._answer(scope, receive, send)
            return
        state = scope["app"].state.server
        try:
            async with awake(state) as waking:
                event = self.row.refusal_event
                if waking is not None and event is not None:
                    later = AnswerWhenAwake(state, waking, self._answer, event)
                    await later(scope, receive, send)
                    return
                if waking is not None:
                    async with state.before_deadline(scope):
                        await asyncio.shield(waking)
                await self._answer(scope, receive, send)
        except ClientGoneError:
            return
        except (PyvtError, WireException) as error:
            if not isinstance(error, (RequestError, WireException)):
                # The model could not be loaded again.
                log.error("request %s: %s", scope["state"]["request_id"], error)
            answer = error_response(wire_error(error), scope["path"])
            await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            async with request.app.state.server.before_deadline(scope):
                response = await self.row.handler(request)
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


def _no_route(scope: Scope, error: HTTPException) -> Response:
    """Return the answer for a path or a method that there is not."""
    path = scope["path"][:200]
    refusal = RequestError(
        f"[server] path: {path!r} does not exist; GET /openapi.json lists the routes",
        code="not_found",
    )
    if error.status_code == 405:
        refusal = RequestError(
            f"[server] method: {scope['method']} is not allowed for {path!r}",
            code="method_not_allowed",
        )
    response = error_response(wire_error(refusal), path)
    for name, value in (error.headers or {}).items():
        response.headers[name] = value
    return response
