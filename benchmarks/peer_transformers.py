"""transformers as a peer of ``pyvt bench peers``: the protocol of ``pyvt/testing/bench_engine.py``.

Runs in a Python that has torch and transformers:
``python peer_transformers.py FOLDER --threads N --dtype bf16``.
"""

import argparse
import time
from typing import Any

import torch
import transformers
from peer_protocol import serve

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Model:
    """A checkpoint folder; prompts are random tokens."""

    def __init__(self, folder: str, dtype: str) -> None:
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
        self.model.eval()
        self.num_ids = self.model.config.vocab_size

    def run(self, num_sequences: int, num_tokens: int, cache: Any) -> tuple[float, Any]:
        """Run random tokens after a cache; return the seconds and the new cache."""
        ids = torch.randint(0, self.num_ids, (num_sequences, num_tokens))
        start = time.perf_counter()
        output = self.model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        return time.perf_counter() - start, output.past_key_values

    def prefill_alone(self, num_tokens: int) -> float:
        """Run a prompt with nothing beside it."""
        return self.run(1, num_tokens, None)[0]

    def decode(self, context: int, num_steps: int, num_sequences: int = 1) -> dict[str, Any]:
        """Return the seconds of prompts of ``context`` tokens, then of each step."""
        prefill_s, cache = self.run(num_sequences, context, None)
        seconds = []
        for _ in range(num_steps):
            spent, cache = self.run(num_sequences, 1, cache)
            seconds.append(spent)
        return {"prefill_s": prefill_s, "seconds": seconds}


def main() -> None:
    """Load the folder and answer until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("path")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", choices=list(DTYPES), default="f32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    transformers.logging.set_verbosity_error()
    start = time.perf_counter()
    with torch.inference_mode():
        model = Model(args.path, args.dtype)
        name = f"transformers {transformers.__version__}, torch {torch.__version__}"
        serve(model, name, time.perf_counter() - start)


if __name__ == "__main__":
    main()
