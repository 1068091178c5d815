"""Settings of the server: where it listens, who may ask, and how much of everything it takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyvt.errors import ConfigError


def _help(text: str, **more: Any) -> dict[str, Any]:
    return {"help": text, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the server."""

    host: str = field(
        default="127.0.0.1", metadata=_help("address to listen on; 0.0.0.0 or :: for all")
    )
    port: int = field(default=8000, metadata=_help("port; 0 takes a free one"))
    uds: str | None = field(
        default=None, metadata=_help("path of a Unix socket to listen on instead of a port")
    )
    ssl_certfile: str | None = field(default=None, metadata=_help("certificate for TLS, PEM"))
    ssl_keyfile: str | None = field(default=None, metadata=_help("its private key, PEM"))
    api_key: Sequence[str] = field(
        default=(),
        metadata=_help("a key that clients must send"),
    )
    served_model_name: Sequence[str] = field(
        default=(), metadata=_help("name of the model in the API; the first one is answered")
    )
    allowed_hosts: Sequence[str] = field(
        default=(),
        metadata=_help("names that a Host header may have, beside localhost and addresses"),
    )
    allowed_origins: Sequence[str] = field(
        default=(), metadata=_help("web origins that may call, beside localhost; * for any")
    )
    max_body_bytes: int = field(
        default=16 << 20, metadata=_help("most bytes of the body of a request")
    )
    max_json_depth: int = field(default=64, metadata=_help("most levels of a request's JSON"))
    max_queued_requests: int = field(
        default=256, metadata=_help("most unfinished requests; more are told to come again")
    )
    request_timeout_s: float | None = field(
        default=None,
        metadata=_help("seconds from the arrival of its head after which a request is ended"),
    )
    keep_alive_interval_s: float = field(
        default=10.0, metadata=_help("seconds of silence in a stream before a comment is sent")
    )
    stall_timeout_s: float = field(
        default=60.0,
        metadata=_help("seconds that a client may leave a stream unread before it is ended"),
    )
    shutdown_timeout_s: float = field(
        default=30.0, metadata=_help("seconds that running requests get when the server is stopped")
    )
    keep_alive_s: float | None = field(
        default=None,
        metadata=_help(
            "seconds without a request after which the model is unloaded; the next request loads "
            "it again  [default: never]"
        ),
    )
    tool_call_parser: str = field(
        default="auto",
        metadata=_help(
            "how the model writes tool calls: auto reads the chat template; none, or a dialect"
        ),
    )
    reasoning_parser: str = field(
        default="auto",
        metadata=_help(
            "how the model marks its reasoning: auto reads the chat template; none, or tags"
        ),
    )
    enable_force_include_usage: bool = field(
        default=False, metadata=_help("end every stream with its usage, asked for or not")
    )
    disable_uvicorn_access_log: bool = field(
        default=False, metadata=_help("write no line for each request")
    )

    def __post_init__(self) -> None:
        _whole("port", self.port, 0, 65535)
        for name in ("max_body_bytes", "max_json_depth", "max_queued_requests"):
            _whole(name, getattr(self, name), 1, 2**40)
        for name in (
            *("request_timeout_s", "keep_alive_interval_s", "stall_timeout_s", "keep_alive_s"),
        ):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 10**9:
                raise _error(name, "seconds above 0", value)
        if not 0 <= self.shutdown_timeout_s <= 10**9:
            raise _error("shutdown_timeout_s", "seconds from 0", self.shutdown_timeout_s)
        if any(not key.strip() for key in self.api_key):
            raise _error("api_key", "keys of at least one character", "an empty one")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise _error("ssl_certfile", "it and ssl_keyfile together", "one of them")


def _whole(name: str, value: Any, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise _error(name, f"an integer, {low} to {high}", value)


def _error(name: str, expected: str, got: Any) -> ConfigError:
    return ConfigError(
        f"[config] server.{name}: expected {expected}, got {got!r}", field=f"server.{name}"
    )
