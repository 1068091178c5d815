"""One load in this process, for ``bench_load``: ``python -m benchmarks.one_load FILE``.

Prints a JSON object: milliseconds to read the file once and to build an engine from it, megabytes
that are resident after a short answer, and those that may be: 1.05 x file + KV cache + 150 MB.
"""

import json
import sys
import time
from pathlib import Path

from pyvt.config import engine_config
from pyvt.engine.build import build_engine
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing.bench_engine import memory_use
from pyvt.worker.model_runner import ModelRunner

OVERHEAD_BYTES = 150 * 10**6
FILE_SHARE = 1.05
PROMPT_TOKENS, NEW_TOKENS = 128, 8


def measure(path: Path) -> dict[str, float]:
    """Return the figures of one load; the file is read once before, so that it is cached."""
    path.read_bytes()
    start = time.perf_counter()
    size = len(path.read_bytes())
    read_s = time.perf_counter() - start
    start = time.perf_counter()
    engine = build_engine(engine_config(str(path), max_model_len=1024, num_blocks=64))
    load_s = time.perf_counter() - start
    runner = engine.core.runner
    assert isinstance(runner, ModelRunner), "the engine runs a model"
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    LLM.from_engine(engine).generate([list(range(100, 100 + PROMPT_TOKENS))], params)
    allowed = FILE_SHARE * size + runner.kv_cache.nbytes + OVERHEAD_BYTES
    return {
        "file": size / 1e6,
        "read": read_s * 1000,
        "load": load_s * 1000,
        "resident": memory_use()["resident_bytes"] / 1e6,
        "allowed": allowed / 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
