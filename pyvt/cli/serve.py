"""``pyvt serve``: a model behind OpenAI's API."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from pyvt import hub
from pyvt.cli.args import field_options, given
from pyvt.cli.model_path import model_path
from pyvt.cli.session import engine_options, engine_settings
from pyvt.cli.terminal import loading, say
from pyvt.config import SchedulerConfig, engine_config
from pyvt.config.server import ServerConfig
from pyvt.engine.async_llm import AsyncLLM
from pyvt.engine.build import build_engine
from pyvt.server.run import listen, serve
from pyvt.server.state import ServerState

SERVER_FIELDS = tuple(field.name for field in fields(ServerConfig))
SCHEDULER_FIELDS = ("max_num_seqs", "max_num_batched_tokens")


@click.command("serve", context_settings={"max_content_width": 100})
@click.argument("model", default=hub.DEFAULT_MODEL)
@field_options(ServerConfig, SERVER_FIELDS)
@field_options(SchedulerConfig, SCHEDULER_FIELDS)
@engine_options
def serve_command(model: str, **options: Any) -> None:
    """Serve MODEL over HTTP: an alias, org/repo, a folder of a model or a .gguf file.

    Clients of OpenAI's API use the URL that is printed, with /v1 at its end. Ctrl-C lets running
    requests end; a second one does not.
    """
    config = ServerConfig(**given(options, SERVER_FIELDS))
    path = model_path(model)
    names = config.served_model_name or (Path(model).name if Path(model).exists() else model,)
    state = ServerState(config=config, names=names)
    settings = given(options, SCHEDULER_FIELDS) | engine_settings(options)
    # Before the model is loaded: a port that is in use is known at once.
    sock = listen(config)

    def load() -> AsyncLLM:
        with loading(model) as progress:
            engine = build_engine(engine_config(str(path), **settings), progress=progress)
        return AsyncLLM.from_engine(engine, max_requests=config.max_queued_requests)

    say(f"loading    {model}")
    serve(state, sock, load, lambda url: _tell(state, model, url), _tell_drain)


def _tell_drain(num_unfinished: int) -> None:
    say(f"stopping   {num_unfinished} requests are being finished; Ctrl-C again ends at once")


def _tell(state: ServerState, model: str, url: str) -> None:
    """Print what is served, how, and where."""
    assert state.llm is not None, "it is told of a loaded model"
    engine = state.llm.engine
    config = engine.config
    cache, device = config.cache, config.device
    speech = state.speech(engine.input_processor)
    tools = "none" if speech.dialect is None else speech.dialect.name
    reasoning = "none" if speech.tags is None else f"{speech.tags.opening} …"
    say(f"model      {model} as {state.names[0]!r}, {device.backend} {device.dtype}")
    say(
        f"context    {config.max_model_len} tokens; {cache.num_blocks} KV blocks of "
        f"{cache.block_size} tokens, {config.scheduler.max_num_seqs} requests at once"
    )
    say(f"detected   tool calls: {tools}; reasoning: {reasoning}")
    say(f"url        {url}")
    if state.config.uds is None:
        key = " -H 'Authorization: Bearer KEY'" if state.config.api_key else ""
        body = '{"messages":[{"role":"user","content":"Hello"}]}'
        say(
            f"try        curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
            f"-d '{body}'"
        )
