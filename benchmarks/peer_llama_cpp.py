"""llama.cpp as a peer of ``pyvt bench peers``: the protocol of ``pyvt/testing/bench_engine.py``.

Runs in a Python that has llama-cpp-python: ``python peer_llama_cpp.py FILE --threads N``.
"""

import argparse
import ctypes
import importlib.metadata
import time
from typing import Any

import llama_cpp
import numpy as np
from peer_protocol import serve

CONTEXT = 1024
MAX_BATCH = 16
_BATCH_CONTEXT = 128


class Model:
    """A file in one context; every step names its tokens, positions and sequences."""

    def __init__(self, path: str, num_threads: int, num_sequences: int = MAX_BATCH) -> None:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = num_sequences * _BATCH_CONTEXT
        settings.n_batch = settings.n_ubatch = 512
        settings.n_seq_max = num_sequences
        settings.kv_unified = True
        settings.n_threads = settings.n_threads_batch = num_threads
        self.context = llama_cpp.llama_init_from_model(self.model, settings)
        vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.num_ids = llama_cpp.llama_vocab_n_tokens(vocab)
        self.rng = np.random.default_rng(0)

    def step(self, rows: list[tuple[int, int]], *, has_all_logits: bool) -> float:
        """Run random tokens at (position, sequence); return the seconds."""
        batch = llama_cpp.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (position, sequence) in enumerate(rows):
            batch.token[i] = int(self.rng.integers(0, self.num_ids))
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = has_all_logits or i == len(rows) - 1
        start = time.perf_counter()
        code = llama_cpp.llama_decode(self.context, batch)
        llama_cpp.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        llama_cpp.llama_batch_free(batch)
        if code != 0:
            raise RuntimeError(f"llama_decode: code {code} for {len(rows)} rows")
        return seconds

    def prefill(self, num_tokens: int, sequence: int = 0) -> float:
        """Run a prompt into an empty sequence, in parts of the batch size."""
        return sum(
            self.step(
                [(p, sequence) for p in range(first, min(first + 512, num_tokens))],
                has_all_logits=False,
            )
            for first in range(0, num_tokens, 512)
        )

    def prefill_alone(self, num_tokens: int) -> float:
        """Run a prompt with nothing beside it."""
        self.clear()
        return self.prefill(num_tokens)

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def decode(self, context: int, num_steps: int, num_sequences: int = 1) -> dict[str, Any]:
        """Return the seconds of prompts of ``context`` tokens, then of each step."""
        self.clear()
        prefill_s = sum(self.prefill(context, sequence) for sequence in range(num_sequences))
        seconds = [
            self.step([(context + i, s) for s in range(num_sequences)], has_all_logits=True)
            for i in range(num_steps)
        ]
        return {"prefill_s": prefill_s, "seconds": seconds}


def main() -> None:
    """Load the file and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--sequences", type=int, default=MAX_BATCH, help="most of a batch")
    args = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    start = time.perf_counter()
    model = Model(args.path, args.threads, args.sequences)
    version = importlib.metadata.version("llama-cpp-python")
    serve(model, f"llama.cpp (llama-cpp-python {version})", time.perf_counter() - start)


if __name__ == "__main__":
    main()
