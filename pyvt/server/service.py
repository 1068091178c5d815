"""What operators ask: whether the server lives, whether it is ready, its version, its metrics."""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import pyvt
from pyvt.server.fields import RequestModel, checked, told
from pyvt.server.metrics import CONTENT_TYPE
from pyvt.server.state import key_salt_of, state_of


async def health(request: Request) -> Response:
    """Answer that the process lives; 500 only when it can serve nothing any more."""
    state = state_of(request)
    is_dead = state.llm is not None and not state.llm.is_ready and not state.is_draining
    body = {"status": "dead" if is_dead else "ok"}
    return JSONResponse(body, 500 if is_dead else 200)


async def ready(request: Request) -> Response:
    """Answer whether requests are taken; 503 with the reason while they are not."""
    reason = state_of(request).why_not_ready()
    if reason is None:
        return JSONResponse({"status": "ready"})
    return JSONResponse(
        {"status": "not ready", "reason": reason}, 503, headers={"retry-after": "5"}
    )


async def version(request: Request) -> Response:
    """Answer pyvt's version."""
    return JSONResponse({"version": pyvt.__version__})


async def metrics(request: Request) -> Response:
    """Answer the metrics in Prometheus' format."""
    return Response(state_of(request).metrics.text(), headers={"content-type": CONTENT_TYPE})


class AbortRequest(RequestModel):
    """POST /abort: the id that an answer has, or had it been complete."""

    request_id: str


async def abort(request: Request) -> Response:
    """End a request soon; its client is told.

    An id that is unknown, or of another key, or whose answer is complete, changes nothing and is
    told of.
    """
    state = state_of(request)
    asked = checked(AbortRequest, await state.body(request))
    if not state.is_asleep:
        state.ready_llm()
    is_aborted = state.abort(asked.request_id, key_salt_of(request))
    body = {"request_id": asked.request_id, "aborted": is_aborted}
    if not is_aborted:
        body["reason"] = "no answer with this id is being made"
    return JSONResponse({**body, **told(asked)})


async def reset_prefix_cache(request: Request) -> Response:
    """Forget every cached prefix that no request holds; answers how many blocks that were.

    It needs no body, but what a web page may have sent must be JSON as everywhere: a browser asks
    first whether a page of another origin may send that.
    """
    state = state_of(request)
    body = await state.body(request) if _may_be_of_a_page(request.headers) else {}
    warnings = told(checked(RequestModel, body))
    if state.is_asleep:
        return JSONResponse({"num_blocks": 0, **warnings})
    num_blocks = await state.ready_llm().call(
        lambda engine: engine.core.scheduler.reset_prefix_cache()
    )
    return JSONResponse({"num_blocks": num_blocks, **warnings})


def _may_be_of_a_page(headers: Headers) -> bool:
    """Return whether a request has a body, or what browsers send along."""
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
    return has_body or any(name in headers for name in ("content-type", "origin", "sec-fetch-site"))
