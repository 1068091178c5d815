"""``pyvt serve``: a model behind OpenAI's API."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import click

from pyvt import hub
from pyvt.cli.args import field_options, given
from pyvt.cli.model_path import model_path, served_name
from pyvt.cli.session import engine_options, engine_settings
from pyvt.cli.terminal import loading, say
from pyvt.config import engine_config
from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.engine.build import build_engine
from pyvt.engine.memory_plan import Plan
from pyvt.server.run import listen, serve
from pyvt.server.state import ServerState

SERVER_FIELDS = tuple(field.name for field in fields(ServerConfig))
# Names of vLLM, where the field has a unit in its own.
SERVER_FLAGS = {
    "shutdown_timeout_s": "--shutdown-timeout",
    "keep_alive_s": "--keep-alive",
    "keep_alive_interval_s": "--sse-keep-alive-interval",
    "stall_timeout_s": "--stall-timeout",
    "request_timeout_s": "--request-timeout",
}
# Of the command that is printed; few enough for a slow machine, whose answer comes as a whole.
TRY_TOKENS = 64
NUM_FORMATS = 2  # element types of weights that are told: norms and the like are left out


@click.command("serve", context_settings={"max_content_width": 100})
@click.argument("model", default=hub.DEFAULT_MODEL)
@field_options(ServerConfig, SERVER_FIELDS, flags=SERVER_FLAGS)
@engine_options
def serve_command(model: str, **options: Any) -> None:
    """Serve MODEL over HTTP: an alias, org/repo, a folder of a model or a .gguf file.

    Clients of OpenAI's API use the URL that is printed, with /v1 at its end. Ctrl-C lets running
    requests end; a second one does not.
    """
    config = ServerConfig(**given(options, SERVER_FIELDS))
    path = model_path(model)
    names = config.served_model_name or (served_name(model),)
    state = ServerState(config=config, names=names)
    settings = engine_settings(options)
    # Before the model is loaded: a port that is in use is known at once.
    sock = listen(config)

    def load() -> AsyncLLM:
        with loading(model) as progress:
            engine = build_engine(
                engine_config(str(path), **settings),
                progress=progress,
                on_plan=lambda plan: None if state.is_asleep else _tell_plan(plan, settings),
            )
        return AsyncLLM.from_engine(engine, max_requests=config.max_queued_requests)

    say(f"loading    {model}")
    serve(state, sock, load, lambda url: _tell(state, model, url), _tell_drain)


def _why(plan: Plan, settings: Mapping[str, Any]) -> str:
    """Return why the context is as long as it is."""
    if "max_model_len" in settings:
        return "as asked for"
    if plan.config.max_model_len == plan.model_config.max_position_embeddings:
        return "the model's own"
    own = plan.model_config.max_position_embeddings
    return f"as many as the memory holds of the model's {own}"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.0f} MiB"


def _tell_drain(num_unfinished: int) -> None:
    say(f"stopping   {num_unfinished} requests are being finished; Ctrl-C again ends at once")


def _tell_plan(plan: Plan, settings: Mapping[str, Any]) -> None:
    """Print how long requests may be and what will be taken of the memory."""
    cache, kv_bytes = plan.config.cache, plan.kv_bytes + plan.state_bytes
    say(f"context    {plan.config.max_model_len} tokens, {_why(plan, settings)}")
    say(
        f"memory     weights {_mib(plan.weight_bytes)}, KV {_mib(kv_bytes)} "
        f"({cache.num_blocks} blocks of {cache.block_size} tokens, {plan.kv_dtype}), steps "
        f"{_mib(plan.activation_bytes)}, left {_mib(plan.left_bytes)} of {_mib(plan.free_bytes)}"
    )


def _tell(state: ServerState, model: str, url: str) -> None:
    """Print what is served, how, and where."""
    assert state.llm is not None, "it is told of a loaded model"
    engine = state.llm.engine
    assert engine.plan is not None, "it is of files"
    device, plan = engine.config.device, engine.plan
    speech = state.speech(engine.input_processor)
    tools = "none" if speech.dialect is None else speech.dialect.name
    reasoning = "none" if speech.tags is None else f"{speech.tags.opening} …"
    formats = ", ".join(plan.weight_formats[:NUM_FORMATS])
    say(
        f"model      {model} as {state.names[0]!r}: {plan.model_config.architecture}, weights in "
        f"{formats}, on {device.backend} in {device.dtype}"
    )
    say(f"detected   tool calls: {tools}; reasoning: {reasoning}")
    say(f"url        {url}")
    say(f"try        {curl_of(state.config, url)}")


def curl_of(config: ServerConfig, url: str) -> str:
    """Return a command that asks the server for a short answer, to be pasted into a shell."""
    base = f"{url if config.uds is None else 'http://localhost'}/v1/chat/completions"
    uds = () if config.uds is None else ("--unix-socket", config.uds)
    key = ("-H", "Authorization: Bearer KEY") if config.api_key else ()
    body = f'{{"messages":[{{"role":"user","content":"Hello"}}],"max_tokens":{TRY_TOKENS}}}'
    return shlex.join(
        ["curl", *uds, base, *key, "-H", "Content-Type: application/json", "-d", body]
    )
