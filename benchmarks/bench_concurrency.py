"""Time many requests at once through the whole engine, on SmolLM2-135M Q4_1. Prints one table.

    python -m benchmarks.bench_concurrency [--llama-python PYTHON] [--only SECTION] [--seconds 60]

Clients of ``AsyncLLM`` stream, so many at once: generated tokens a second while all of them decode,
and with their prompts.

1. ``offline``: 16 clients against the same engine offline, steps of 16 sequences with nothing
   around them. The clients are held to 85 % of it.
2. ``peer``: 8 and 32 clients; with ``--llama-python``, a Python that has llama-cpp-python, against
   its batched decode of as many sequences on the same file, without sampling. The clients are held
   to twice that.

Who is measured takes turns, in one run; ratios are taken within a turn and the median is told. The
first turn of a section does not count, and no turn begins when its ``--seconds`` are over, unless
none has counted yet.
"""

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from benchmarks.lines import Line
from pyvt import hub
from pyvt.engine.async_llm import AsyncLLM
from pyvt.engine.llm_engine import LLMEngine
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.cores import num_usable_cores
from pyvt.testing.bench_peers import Peer
from pyvt.testing.serving_load import LoadResult, closed_loop, engine_asker, make_prompts

MODEL = "smollm2-135m"
CONTEXT, NUM_NEW = 64, 48
MAX_TURNS = 6
OFFLINE = 16
BESIDE_PEER = (8, 32)

Rates = tuple[float, float]
Turn = Callable[[AsyncLLM, Peer | None, Iterator[int], int], dict[str, Rates]]


def client_rates(llm: AsyncLLM, count: int, seed: int, num_new: int) -> Rates:
    """Return tokens a second of clients, while all of them decode and over all of their time."""
    size = llm.engine.input_processor.limits.vocab_size
    prompts = make_prompts(
        "random", count, input_len=CONTEXT, prefix_len=0, vocab_size=size, seed=seed
    )
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    loop = closed_loop(engine_asker(llm, params), prompts, count, lambda _: None)
    result: LoadResult = asyncio.run(loop)
    start = max(seen.output_s[0] for seen in result.requests)
    end = min(seen.output_s[-1] for seen in result.requests)
    stamps = [s for seen in result.requests for s in seen.output_s if start < s <= end]
    whole = max(s.output_s[-1] for s in result.requests) - min(s.due_s for s in result.requests)
    return len(stamps) / (end - start), count * num_new / whole


def offline_rate(engine: LLMEngine, count: int, seed: int, num_new: int) -> float:
    """Return tokens a second of decode steps; called between two steps of the engine's thread."""
    size, clock = engine.input_processor.limits.vocab_size, engine.core.clock
    prompts = make_prompts(
        "random", count, input_len=CONTEXT, prefix_len=0, vocab_size=size, seed=seed
    )
    params = SamplingParams(temperature=0, max_tokens=num_new, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add_request(f"offline-{seed}-{i}", prompt, params)
    seconds = []
    while engine.has_unfinished_requests:
        start = clock()
        engine.step()
        last = engine.core.stats.last_step
        if last is not None and last.num_scheduled_tokens == count:
            seconds.append(clock() - start)
    return count / statistics.median(seconds)


def peer_rates(peer: Peer, count: int, num_new: int) -> Rates:
    """Return what ``client_rates`` returns, of a peer's batched decode."""
    ask = {"do": "batch", "sequences": count, "context": CONTEXT, "steps": num_new}
    answer: dict[str, Any] = peer.ask(ask)
    whole = answer["prefill_s"] + sum(answer["seconds"])
    return count / statistics.median(answer["seconds"]), count * num_new / whole


def offline_turn(
    llm: AsyncLLM, peer: Peer | None, seeds: Iterator[int], num_new: int
) -> dict[str, Rates]:
    """Measure clients, then steps without anything around them."""
    rates = {f"clients {OFFLINE}": client_rates(llm, OFFLINE, next(seeds), num_new)}
    seed = next(seeds)
    offline = llm.thread.call(lambda engine: offline_rate(engine, OFFLINE, seed, num_new))
    return rates | {"offline": (offline, offline)}


def peer_turn(
    llm: AsyncLLM, peer: Peer | None, seeds: Iterator[int], num_new: int
) -> dict[str, Rates]:
    """Measure clients, each number of them beside the peer where there is one."""
    rates = {}
    for count in BESIDE_PEER:
        rates[f"clients {count}"] = client_rates(llm, count, next(seeds), num_new)
        if peer is not None:
            rates[f"llama.cpp {count}"] = peer_rates(peer, count, num_new)
    return rates


SECTIONS: dict[str, Turn] = {"offline": offline_turn, "peer": peer_turn}


def take_turns(turn: Callable[[], dict[str, Rates]], seconds: float) -> dict[str, list[Rates]]:
    """Measure everybody in turn; the first turn does not count."""
    turn()
    found: dict[str, list[Rates]] = {}
    start = time.monotonic()
    for _ in range(MAX_TURNS):
        for name, pair in turn().items():
            found.setdefault(name, []).append(pair)
        if time.monotonic() - start > seconds:
            break
    return found


def lines(found: dict[str, list[Rates]]) -> Iterator[Line]:
    """Yield the rates, and the ratios that are held to something."""
    for name, pairs in found.items():
        decode = f"{name}: decode, {len(pairs)} turns"
        yield Line(decode, statistics.median(p[0] for p in pairs), "tokens/s")
        if name != "offline":
            yield Line(f"{name}: with prompts", statistics.median(p[1] for p in pairs), "tokens/s")
    if "offline" in found:
        name, ours = f"clients {OFFLINE}, of offline steps", found[f"clients {OFFLINE}"]
        yield ratio(f"{name} of {OFFLINE}: decode", ours, found["offline"], 0.85)
    for count in BESIDE_PEER:
        peer = found.get(f"llama.cpp {count}")
        if peer is not None:
            ours = found[f"clients {count}"]
            name = f"clients {count}, of llama.cpp"
            yield ratio(f"{name}: decode", ours, peer, 2.0)
            yield ratio(f"{name}: with prompts", ours, peer, 2.0, part=1)


def ratio(
    name: str, ours: list[Rates], others: list[Rates], least: float, *, part: int = 0
) -> Line:
    """Return the median ratio within a turn."""
    ratios = [a[part] / b[part] for a, b in zip(ours, others, strict=True)]
    return Line(name, statistics.median(ratios), "x", least=least)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--llama-python")
    parser.add_argument("--only", default="", help="sections whose name holds this word")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each section")
    parser.add_argument("--quick", action="store_true", help="short answers, two turns")
    args = parser.parse_args()
    path = hub.pull(MODEL, print)
    llm = AsyncLLM(str(path), max_model_len=1024, num_blocks=512)
    peer, seeds = None, itertools.count()
    seconds, num_new = (0.0, 12) if args.quick else (args.seconds, NUM_NEW)
    with TemporaryFile("w+") as errors:
        if args.llama_python is not None and args.only in "peer":
            script = Path(__file__).with_name("peer_llama_cpp.py")
            threads, most = str(num_usable_cores()), str(max(BESIDE_PEER))
            command = [args.llama_python, str(script), str(path), "--threads", threads]
            peer = Peer("llama.cpp", [*command, "--sequences", most], errors)
        for name, turn in SECTIONS.items():
            if args.only in name:
                one = partial(turn, llm, peer, seeds, num_new)
                for line in lines(take_turns(one, seconds)):
                    print(line.text(), flush=True)
        if peer is not None:
            peer.close()
    llm.thread.shutdown()


if __name__ == "__main__":
    main()
