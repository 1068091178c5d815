"""Time grammars and prompt lookup on SmolLM2-135M Q4_1; print figures and write the run record.

    python -m benchmarks.bench_structured [--repeats 5] [--out FOLDER]

Grammars: compile time of common schemas, and what a step pays for one: the mask, its use on the
logits, and the token taken by the matcher, over the tokens of a document that the schema allows.
Prompt lookup: greedy decoding of a text that repeats itself, and of one that does not, with drafts
against without in one run; the tokens are the same. Where `.fixtures` holds the suite of schemas
(`python -m tests.fixtures --all`): what becomes of its schemas and documents.
"""

import argparse
import json
import os
import time
from importlib.metadata import files
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from pyvt import hub, ops
from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams, StructuredOutputsParams
from pyvt.structured import GrammarCompiler
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine, write_record
from pyvt.testing.schema_suite import run_suite

MODEL = "smollm2-135m"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / ".fixtures" / "json-schema-suite.json"
NEW_TOKENS = 96
NUM_DRAFTS = 4
TEXTS = {
    "repeating": "one two three four five six seven eight nine ten " * 4,
    "plain": "The history of the city begins with a small harbour, and",
}

_PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "email": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 8},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
_DEEP: dict[str, Any] = {"type": "integer"}
for _ in range(32):
    _DEEP = {"type": "array", "items": _DEEP}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": {"json": _PERSON},
    "any JSON": {"json": {}},
    "list of objects": {"json": {"type": "array", "items": _PERSON}},
    "32 arrays deep": {"json": _DEEP},
    "enum of 1,000": {"json": {"enum": [f"value {i}" for i in range(1000)]}},
    "100 properties": {
        "json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100)}}
    },
    "regex": {"regex": r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}Z"},
}
DOCUMENT = json.dumps(
    [
        {"name": f"Person number {i}", "age": 20 + i, "email": f"p{i}@example.org", "tags": ["x"]}
        for i in range(8)
    ]
)


def installed_mb() -> float:
    """Return what llguidance takes on the disk, in MB."""
    found = files("llguidance") or ()
    paths = (Path(str(path.locate())) for path in found)
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def suite() -> list[Figure]:
    """Return what the compiler makes of JSON-Schema-Test-Suite, strictly; nothing without it."""
    if not SUITE.exists():
        return []
    result = run_suite(json.loads(SUITE.read_text()))
    return [
        Figure.of(f"suite: {name}", "", [float(value)])
        for name, value in (
            ("schemas", result.num_schemas),
            ("schemas refused with a reason", len(result.refusals)),
            ("valid documents that can be written", result.num_accepted),
            ("valid documents that cannot", result.num_lost),
            ("invalid documents that cannot", result.num_rejected),
            ("invalid documents that can", len(result.unsound) + result.num_warned),
        )
    ]


def compile_ms(compiler: GrammarCompiler) -> list[Figure]:
    """Return the time of each schema, compiled once, and of the first one found again."""
    figures = []
    for name, settings in SCHEMAS.items():
        start = time.perf_counter()
        compiler.compile(StructuredOutputsParams(**settings))
        figures.append(Figure.of(f"compile {name}", "ms", [(time.perf_counter() - start) * 1000]))
    start = time.perf_counter()
    compiler.compile(StructuredOutputsParams(**SCHEMAS["object"]))
    return [*figures, Figure.of("compiled before", "ms", [(time.perf_counter() - start) * 1000])]


def step_us(compiler: GrammarCompiler, token_ids: list[int], vocab_size: int) -> list[float]:
    """Return what each token of a document costs beside the model, in µs."""
    grammar = compiler.compile(StructuredOutputsParams(**SCHEMAS["list of objects"]))
    matcher = grammar.start((), max_tokens=4 * len(token_ids))
    logits = np.zeros((1, vocab_size), np.float32)
    costs = []
    for i, token_id in enumerate(token_ids):
        start = time.perf_counter()
        mask = matcher.masks((), 4 * len(token_ids) - i)
        ops.apply_token_mask(logits, mask, out=logits)
        matcher.advance([token_id])
        costs.append((time.perf_counter() - start) * 1e6)
        assert mask[0, token_id], "the document satisfies its schema"
    return costs


def decode(llm: LLM, text: str) -> tuple[float, tuple[int, ...]]:
    """Return tokens/s of decode after the prompt, and the tokens."""
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    (output,) = llm.generate(text, params)
    metrics = output.metrics
    assert metrics.last_token_s is not None, "a finished request has a last token"
    assert metrics.first_token_s is not None, "a finished request has a first token"
    span_s = metrics.last_token_s - metrics.first_token_s
    return (NEW_TOKENS - 1) / span_s, output.outputs[0].token_ids


def lookup(plain: LLM, drafting: LLM, name: str, repeats: int) -> list[Figure]:
    """Return speeds with and without drafts, taken in turns, their ratio and the acceptance."""
    text, stats = TEXTS[name], drafting.engine.core.stats
    decode(plain, text), decode(drafting, text)
    before = stats.spec_decode_num_draft_tokens, stats.spec_decode_num_accepted_tokens
    pairs = [(decode(plain, text), decode(drafting, text)) for _ in range(repeats)]
    assert all(without[1] == with_drafts[1] for without, with_drafts in pairs), "tokens differ"
    num_drafted = stats.spec_decode_num_draft_tokens - before[0]
    num_accepted = stats.spec_decode_num_accepted_tokens - before[1]
    return [
        Figure.of(f"decode {name} text", "tokens/s", [a[0] for a, _ in pairs]),
        Figure.of(f"decode {name} text with drafts", "tokens/s", [b[0] for _, b in pairs]),
        Figure.of(f"ratio of drafts, {name} text", "×", [b[0] / a[0] for a, b in pairs]),
        Figure.of(f"drafts a token, {name} text", "", [num_drafted / repeats / NEW_TOKENS]),
        Figure.of(f"drafts accepted, {name} text", "share", [num_accepted / max(1, num_drafted)]),
    ]


def main() -> None:
    """Measure, print, and write ``structured.json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    arguments = parser.parse_args()
    path = str(hub.pull(MODEL, print))
    plain = LLM.from_engine(build_engine(engine_config(path, max_model_len=512)))
    config = plain.engine.config
    tokenizer = plain.tokenizer
    compiler = GrammarCompiler(tokenizer, tokenizer.vocab_size, tokenizer.eos_token_ids)
    compiler.compile(StructuredOutputsParams(choice=["a"]))
    figures = [Figure.of("llguidance installed", "MB", [installed_mb()]), *compile_ms(compiler)]
    figures += suite()
    document = tokenizer.encode(DOCUMENT, add_special_tokens=False)
    costs = [step_us(compiler, document, tokenizer.vocab_size) for _ in range(arguments.repeats)]
    figures += [
        Figure.of("grammar a step, median", "µs", [median(c) for c in costs]),
        Figure.of("grammar a step, mean", "µs", [sum(c) / len(c) for c in costs]),
        Figure.of("grammar a step, p99", "µs", [float(np.percentile(c, 99)) for c in costs]),
    ]
    # The second engine comes now: its threads would share the cores with what was measured above.
    settings = {"speculation": "ngram", "num_speculative_tokens": NUM_DRAFTS}
    drafting = LLM.from_engine(build_engine(engine_config(path, max_model_len=512, **settings)))
    speeds = [f for name in TEXTS for f in lookup(plain, drafting, name, arguments.repeats)]
    step_of_model_us = 1e6 / speeds[0].median
    share = [100 * sum(c) / len(c) / step_of_model_us for c in costs]
    figures += [Figure.of("grammar beside the model", "% of its step", share), *speeds]
    record = RunRecord(
        command="python -m benchmarks.bench_structured",
        model=MODEL,
        model_id=f"sha256:{MODEL_SHA256}",
        backend=config.device.backend,
        dtype=config.device.dtype,
        prompt_tokens=len(tokenizer.encode(TEXTS["repeating"])),
        new_tokens=NEW_TOKENS,
        concurrency=1,
        threads=int(os.environ.get("OPENBLAS_NUM_THREADS", os.cpu_count() or 1)),
        machine=this_machine(),
        commit=this_commit(ROOT),
        features=(config.device.backend, f"ngram {NUM_DRAFTS}"),
        figures=tuple(figures),
    )
    write_record(arguments.out, "structured", record)
    for figure in record.figures:
        print(f"{figure.name} {figure.median:.2f} {figure.unit} (± {figure.spread:.2f})")


if __name__ == "__main__":
    main()
