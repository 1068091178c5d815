"""``pyvt bench serve``: what clients of a server see, of pyvt or of any other with OpenAI's API."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

import pyvt
from pyvt.cli.bench_output import command_line, tell, testing_module
from pyvt.cli.bench_serving import HEADER, load_options, one_loop, rate_options
from pyvt.cli.remote import RemoteServer
from pyvt.cli.terminal import counting, say
from pyvt.errors import ConfigError, ServerError

_WORDS = ("a", "the", "one", "day", "sun", "tree", "house", "water", "small", "green", "time")
MAX_TOLD = 3  # different sentences of failed requests


@click.command("serve", context_settings={"max_content_width": 100})
@click.option("--url", default="http://127.0.0.1:8000", show_default=True, help="the server")
@click.option("--api-key", envvar="OPENAI_API_KEY", default="", help="its key; or OPENAI_API_KEY")
@click.option("-m", "--model", help="name of the model; without it the first that is served")
@click.option(
    "--endpoint",
    type=click.Choice(("completions", "chat")),
    default="completions",
    show_default=True,
)
@click.option(
    "--percentiles", default="50,90,99", show_default=True, help="of each time, with commas between"
)
@click.option("--plot", type=click.Path(path_type=Path), help="draw the times; .svg, .png or .pdf")
@load_options(num_prompts=64, input_len=128, output_len=64, has_model=False)
@rate_options
def bench_serve(
    url: str,
    api_key: str,
    model: str | None,
    endpoint: str,
    percentiles: str,
    plot: Path | None,
    request_rate: float,
    arrival: str,
    concurrency: int | None,
    **options: Any,
) -> int:
    """Measure a server over HTTP, in an open loop at a rate, or in a closed one.

    Prompts are of --input-len words; the server tells how many tokens that are. Prints TTFT, TPOT,
    ITL and E2EL by vLLM's names, the throughput of requests and tokens, and how many requests were
    answered; why others were not is told. A first request, which is not counted, checks the server.
    """
    load = testing_module("serving_load")
    wanted = _percentiles(percentiles)
    run = one_loop(request_rate, arrival, concurrency, options["seed"])
    if plot is not None:
        _check_plot(plot)
    server = RemoteServer(url, api_key)
    prompts = [
        " ".join(_WORDS[number % len(_WORDS)] for number in ids)
        for ids in load.make_prompts(
            options["dataset"],
            options["num_prompts"] + 1,
            input_len=options["input_len"],
            prefix_len=options["prefix_len"],
            vocab_size=len(_WORDS),
            seed=options["seed"],
        )
    ]

    async def whole() -> tuple[str, Any]:
        name = model or await server.model()
        body = {"model": name, "max_tokens": options["output_len"], "ignore_eos": True}
        ask = server_asker(server, endpoint, {**body, "temperature": 0})
        await ask(prompts[0], time.perf_counter())
        with counting("requests", options["num_prompts"]) as advance:
            return name, await run(load, ask, prompts[1:], advance)

    name, result = asyncio.run(whole())
    _tell_errors(result)
    figures = tuple(result.figures(wanted))
    record = _record(name, figures, concurrency or options["num_prompts"], options)
    rows = [(f.name, f"{f.median:,.2f}", f.unit, str(f.n)) for f in figures]
    tell(HEADER, rows, [("serve", record)], options["out"], options["is_json"])
    if plot is not None:
        draw(result, plot)
    return 0


def server_asker(server: RemoteServer, endpoint: str, body: Mapping[str, Any]) -> Any:
    """Return what asks a server, for the loops of ``serving_load``."""
    load = testing_module("serving_load")
    path = "/chat/completions" if endpoint == "chat" else "/completions"
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}

    async def ask(prompt: str, due_s: float) -> Any:
        seen = load.Seen(due_s)
        given = {"messages": [{"role": "user", "content": prompt}]}
        async for event in server.events(
            path, {**asked, **(given if endpoint == "chat" else {"prompt": prompt})}
        ):
            now_s = time.perf_counter()
            if any(_has_text(choice) for choice in event.get("choices") or ()):
                seen.output_s.append(now_s)
            usage = event.get("usage")
            if usage:
                seen.num_prompt_tokens = usage["prompt_tokens"]
                seen.num_tokens = usage["completion_tokens"]
        # An answer without any text has ended all the same.
        seen.output_s = seen.output_s or [time.perf_counter()]
        return seen

    return ask


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(
        delta.get(name) for name in ("content", "reasoning", "reasoning_content", "tool_calls")
    )


def _percentiles(text: str) -> tuple[float, ...]:
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= value <= 100 for value in found):
        raise ConfigError(
            f"[bench] --percentiles: expected numbers from 0 to 100, got {text[:80]!r}"
        )
    return found


def _tell_errors(result: Any) -> None:
    """Print the first of what the server said to requests that failed, each sentence once.

    Raises:
        ServerError: all failed.
    """
    errors, count = result.errors, len(result.requests)
    if errors and not result.completed:
        raise ServerError(f"[bench] requests: all {count} failed, the first with {errors[0]}")
    for error, number in list(Counter(errors).items())[:MAX_TOLD]:
        say(f"{number} of {count} requests failed: {error}")


def _check_plot(path: Path) -> None:
    """Find out before a run whether its picture can be written.

    Raises:
        ConfigError: matplotlib, the extra ``plot``, is not there, or the path cannot be used.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            "[bench] --plot: expected matplotlib; install it with pip install 'pyvt[plot]'"
        ) from error
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise ConfigError(
            f"[bench] --plot: expected a name that ends with .svg, .png or .pdf, got {str(path)!r}"
        )
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise ConfigError(
            f"[bench] --plot: expected a file in a folder that is there, got {str(path)!r}"
        )


def draw(result: Any, path: Path) -> None:
    """Draw the distribution of each time; ``_check_plot`` has seen the path."""
    from matplotlib.figure import Figure

    load = testing_module("serving_load")
    figure = Figure(figsize=(9, 5), layout="constrained")
    for axes, metric in zip(figure.subplots(2, 2).flat, load.METRICS, strict=True):
        samples = sorted(result.milliseconds(metric))
        shares = [100 * (i + 1) / len(samples) for i in range(len(samples))]
        axes.step(samples, shares, where="post")
        axes.set_xlabel(f"{metric.upper()} [ms]")
        axes.set_ylabel("% of samples within")
        axes.set_ylim(0, 100)
    figure.savefig(path)


def _record(name: str, figures: Any, concurrency: int, options: Mapping[str, Any]) -> Any:
    record = testing_module("record")
    return record.RunRecord(
        command=command_line(),
        model=name,
        model_id=name,
        backend="server",
        dtype="server",
        prompt_tokens=options["input_len"],
        new_tokens=options["output_len"],
        concurrency=concurrency,
        threads=0,
        machine=record.this_machine(),
        commit=record.this_commit(Path(pyvt.__file__).parent),
        features=("http", options["dataset"]),
        figures=figures,
    )
