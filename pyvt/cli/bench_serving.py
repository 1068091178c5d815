"""``pyvt bench latency`` and ``pyvt bench throughput``: what clients of the engine see."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import pyvt
from pyvt.cli.bench_output import command_line, json_option, out_option, tell, testing_module
from pyvt.cli.session import model_options, open_engine
from pyvt.cli.terminal import counting
from pyvt.engine.async_llm import AsyncLLM
from pyvt.errors import ConfigError
from pyvt.sampling_params import SamplingParams

HEADER = ("figure", "value", "unit", "samples")


def load_options(
    *, num_prompts: int, input_len: int, output_len: int, has_model: bool = True
) -> Callable[..., Any]:
    """Return a decorator that gives a command the options of a load, with its defaults.

    Without a model of its own a command knows no tokens, and its prompts are of words.
    """
    count = click.IntRange(1)
    unit = "tokens" if has_model else "words"
    options = (
        click.option("--num-prompts", type=count, default=num_prompts, show_default=True),
        click.option(
            "--input-len",
            type=count,
            default=input_len,
            show_default=True,
            help=f"{unit} of a prompt",
        ),
        click.option(
            "--output-len",
            type=count,
            default=output_len,
            show_default=True,
            help="tokens of an answer",
        ),
        click.option(
            "--dataset",
            type=click.Choice(("random", "shared-prefix")),
            default="random",
            show_default=True,
            help=f"prompts of random {unit}, or such that begin with the same ones",
        ),
        click.option(
            "--prefix-len",
            type=count,
            default=max(1, input_len // 2),
            show_default=True,
            help=f"{unit} that the prompts of shared-prefix share",
        ),
        click.option("--seed", type=int, default=0, show_default=True, help="of prompts, arrivals"),
        json_option,
        out_option,
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return model_options(command) if has_model else command

    return decorate


def rate_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that ``one_loop`` takes."""
    for option in (
        click.option(
            "--concurrency",
            type=click.IntRange(1),
            help="a closed loop instead, with that many requests under way",
        ),
        click.option(
            "--arrival",
            type=click.Choice(("poisson", "fixed")),
            default="poisson",
            show_default=True,
            help="gaps between requests: random, or all the same",
        ),
        click.option(
            "--request-rate",
            type=float,
            default=float("inf"),
            show_default=True,
            help="requests a second; inf sends all at once",
        ),
    ):
        command = option(command)
    return command


@click.command(context_settings={"max_content_width": 100})
@load_options(num_prompts=16, input_len=128, output_len=64)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="requests under way: a new one is sent when one has ended",
)
def latency(concurrency: int, **options: Any) -> int:
    """Measure what a client waits for, in a closed loop.

    Prints mean, median and p99 of TTFT, TPOT, ITL and E2EL, the throughput, and how many requests
    were answered.
    """

    async def run(load: Any, ask: Any, prompts: Any, advance: Any) -> Any:
        return await load.closed_loop(ask, prompts, concurrency, advance)

    return _measure("latency", concurrency, run, options)


@click.command(context_settings={"max_content_width": 100})
@load_options(num_prompts=64, input_len=128, output_len=64)
@rate_options
def throughput(request_rate: float, arrival: str, concurrency: int | None, **options: Any) -> int:
    """Measure how much comes through, in an open loop at a rate, or in a closed one.

    Prints the throughput of requests and tokens, mean, median and p99 of TTFT, TPOT, ITL and E2EL,
    and how many requests were answered. In an open loop a request that waits for the engine counts
    its waiting.
    """
    run = one_loop(request_rate, arrival, concurrency, options["seed"])
    return _measure("throughput", concurrency or options["num_prompts"], run, options)


def one_loop(
    request_rate: float, arrival: str, concurrency: int | None, seed: int
) -> Callable[..., Any]:
    """Return what runs a load as the options say: closed with a concurrency, else open at a rate.

    Raises:
        ConfigError: the rate is none, or there is a concurrency beside it.
    """
    if not request_rate > 0:
        raise ConfigError(f"[bench] request_rate: expected more than 0, got {request_rate}")
    if concurrency is not None and request_rate != float("inf"):
        raise ConfigError("[bench] request_rate: expected none with --concurrency; choose one loop")

    async def run(load: Any, ask: Any, prompts: Any, advance: Any) -> Any:
        if concurrency is not None:
            return await load.closed_loop(ask, prompts, concurrency, advance)
        offsets = load.arrival_offsets(arrival, len(prompts), request_rate, seed)
        return await load.open_loop(ask, prompts, offsets, advance)

    return run


def _measure(name: str, concurrency: int, run: Callable[..., Any], options: dict[str, Any]) -> int:
    """Load a model, warm it up, run the load and tell the figures."""
    load = testing_module("serving_load")
    engine = open_engine(options)
    prompts = load.make_prompts(
        options["dataset"],
        options["num_prompts"] + 1,
        input_len=options["input_len"],
        prefix_len=options["prefix_len"],
        vocab_size=engine.input_processor.limits.vocab_size,
        seed=options["seed"],
    )
    params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=options["output_len"])
    for prompt in prompts[:1]:
        engine.process("check", prompt, params)

    async def whole() -> Any:
        llm = AsyncLLM.from_engine(engine)
        try:
            ask = load.engine_asker(llm, params)
            await load.closed_loop(ask, prompts[:1], 1, lambda _: None)
            with counting("requests", options["num_prompts"]) as advance:
                return await run(load, ask, prompts[1:], advance)
        finally:
            await llm.shutdown()

    figures = tuple(asyncio.run(whole()).figures())
    record = _record(engine, figures, concurrency, options)
    rows = [(f.name, f"{f.median:,.2f}", f.unit, str(f.n)) for f in figures]
    tell(HEADER, rows, [(name, record)], options["out"], options["is_json"])
    return 0


def _record(engine: Any, figures: Any, concurrency: int, options: dict[str, Any]) -> Any:
    record, peers = testing_module("record"), testing_module("bench_peers")
    device, path = engine.config.device, Path(engine.config.model)
    root = Path(pyvt.__file__).parent
    return record.RunRecord(
        command=command_line(),
        model=options["model"],
        model_id=peers.file_sha256(path) if path.is_file() else str(path.name),
        backend=device.backend,
        dtype=device.dtype,
        prompt_tokens=options["input_len"],
        new_tokens=options["output_len"],
        concurrency=concurrency,
        threads=device.threads,
        machine=record.this_machine(),
        commit=record.this_commit(root),
        features=(device.backend, options["dataset"]),
        figures=figures,
    )
