"""Time the NumPy reference on SmolLM2-135M Q4_1 and write the run record.

    python -m benchmarks.bench_reference [--repeats 3]

The figures are recorded, not chased: the reference is the spec. Prefill is one prompt of
``PROMPT_TOKENS``, decode ``NEW_TOKENS`` greedy tokens after it, one request at a time.
"""

import argparse
import os
from pathlib import Path

from pyvt import hub
from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing.record import Figure, RunRecord, this_commit, this_machine, write_record

MODEL = "smollm2-135m"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROMPT_TOKENS = 256
NEW_TOKENS = 32
ROOT = Path(__file__).resolve().parents[1]


def measure(llm: LLM) -> tuple[float, float]:
    """Return tokens/s of prefill and of decode of one request."""
    prompt = [100 + i % 900 for i in range(PROMPT_TOKENS)]
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    (output,) = llm.generate([prompt], params)
    metrics = output.metrics
    assert metrics.ttft_ms is not None, "a finished request has a first token"
    assert metrics.mean_tpot_ms is not None, "a request of several tokens has a mean"
    return PROMPT_TOKENS / metrics.ttft_ms * 1000, 1000 / metrics.mean_tpot_ms


def main() -> None:
    """Measure and write ``benchmarks/results/reference.json``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    engine = build_engine(
        engine_config(str(hub.pull(MODEL, print)), backend="numpy", max_model_len=1024)
    )
    llm = LLM.from_engine(engine)
    measure(llm)
    samples = [measure(llm) for _ in range(repeats)]
    record = RunRecord(
        command="python -m benchmarks.bench_reference",
        model=MODEL,
        model_id=f"sha256:{MODEL_SHA256}",
        backend="numpy",
        dtype="f32",
        prompt_tokens=PROMPT_TOKENS,
        new_tokens=NEW_TOKENS,
        concurrency=1,
        threads=int(os.environ.get("OPENBLAS_NUM_THREADS", os.cpu_count() or 1)),
        machine=this_machine(),
        commit=this_commit(ROOT),
        features=("numpy",),
        figures=(
            Figure.of("load", "ms", [engine.model_load_ms]),
            Figure.of("prefill", "tokens/s", [prefill for prefill, _ in samples]),
            Figure.of("decode", "tokens/s", [decode for _, decode in samples]),
        ),
    )
    write_record(ROOT / "benchmarks" / "results", "reference", record)
    for figure in record.figures:
        print(f"{figure.name} {figure.median:.1f} {figure.unit} (± {figure.spread:.1f})")


if __name__ == "__main__":
    main()
