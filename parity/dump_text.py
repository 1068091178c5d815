"""Write the goldens of greedy text: another engine's tokens and its 20 best logprobs a position.

    python parity/dump_text.py llama.cpp MODEL.gguf       (llama-cpp-python)
    python parity/dump_text.py transformers MODEL.gguf    (torch, transformers, accelerate, gguf)
    python parity/dump_text.py transformers FOLDER        (a checkpoint as released)

For a GGUF file llama.cpp comes first: it cuts the prompts into tokens, and transformers is fed the
same ids, since the tokenizer that transformers derives from the file leaves out its pre-tokenizer.

Each oracle lives in an environment of its own, so this file imports nothing of pyvt. It writes
``goldens/text/<model>/<oracle>/``:

1. ``manifest.json``: ``oracle`` (name, version, arithmetic), ``model`` (file, sha256), ``prompts``
   (ids in order), ``max_new_tokens``.
2. ``<prompt id>.npz``: ``prompt_ids`` i32 ``[P]``; ``token_ids`` i32 ``[n]``, greedy, with the
   token that ended the text; ``top_ids`` i32 and ``top_logprobs`` f32 ``[n, 20]``, best first.
"""

import hashlib
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
PROMPTS = HERE / "prompts" / "text24.json"
MAX_NEW_TOKENS = 64
NUM_TOP = 20


def _greedy(logits: np.ndarray[Any, Any]) -> tuple[int, np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    wide = logits.astype(np.float64)
    logprobs = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    top = np.argsort(-logprobs, kind="stable")[:NUM_TOP]
    return int(top[0]), top.astype(np.int32), logprobs[top].astype(np.float32)


class Transformers:
    """transformers on the dequantised weights, f32, eager attention."""

    arithmetic = "weights dequantised to f32, f32 products"
    package = "transformers"

    def __init__(self, model: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.torch = torch
        is_folder = model.is_dir()
        source = {} if is_folder else {"gguf_file": model.name}
        self.model = AutoModelForCausalLM.from_pretrained(
            model if is_folder else model.parent,
            **source,
            local_files_only=True,
            dtype=torch.float32,
            attn_implementation="eager",
        )
        self.tokenizer = AutoTokenizer.from_pretrained(model) if is_folder else None
        eos = self.model.generation_config.eos_token_id
        self.eos_ids = set(eos if isinstance(eos, list) else [eos])

    def prompt_ids(self, prompt: dict[str, Any], model: Path) -> list[int]:
        """Return the ids of a folder's own tokenizer, for a GGUF file those that llama.cpp gave."""
        if self.tokenizer is not None:
            return list(self.tokenizer(prompt["text"], add_special_tokens=False).input_ids)
        stored = np.load(golden_folder(model, "llama.cpp") / f"{prompt['id']}.npz")
        ids: list[int] = stored["prompt_ids"].tolist()
        return ids

    def start(self, ids: list[int]) -> Callable[[int | None], np.ndarray[Any, Any]]:
        """Return a function that takes the last token (None: the prompt) and gives logits."""
        cache: Any = None

        def step(token: int | None) -> np.ndarray[Any, Any]:
            nonlocal cache
            feed = self.torch.tensor([ids if token is None else [token]])
            with self.torch.no_grad():
                out = self.model(feed, past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            logits: np.ndarray[Any, Any] = out.logits[0, -1].numpy()
            return logits

        return step


class LlamaCpp:
    """llama.cpp through llama-cpp-python on the file as it is, on the CPU."""

    arithmetic = "weights in blocks, activations quantised to int8"
    package = "llama-cpp-python"

    def __init__(self, model: Path) -> None:
        import llama_cpp

        self.lib = llama_cpp
        self.llama = llama_cpp.Llama(
            str(model), n_ctx=2048, n_batch=2048, n_threads=2, verbose=False, n_gpu_layers=0
        )
        self.eos_ids = {self.llama.token_eos()}

    def prompt_ids(self, prompt: dict[str, Any], model: Path) -> list[int]:
        """Return the ids that llama.cpp's tokenizer gives, special tokens read as such."""
        ids: list[int] = self.llama.tokenize(prompt["text"].encode(), add_bos=False, special=True)
        return ids

    def start(self, ids: list[int]) -> Callable[[int | None], np.ndarray[Any, Any]]:
        """Return a function that takes the last token (None: the prompt) and gives logits."""
        self.llama.reset()

        def step(token: int | None) -> np.ndarray[Any, Any]:
            self.llama.eval(ids if token is None else [token])
            pointer = self.lib.llama_get_logits_ith(self.llama.ctx, -1)
            return np.ctypeslib.as_array(pointer, (self.llama.n_vocab(),)).copy()

        return step


ORACLES = {"transformers": Transformers, "llama.cpp": LlamaCpp}


def golden_folder(model: Path, oracle: str) -> Path:
    """Return where the goldens of a model and an oracle lie."""
    name = model.name if model.is_dir() else model.stem
    return HERE / "goldens" / "text" / name.lower() / oracle


def _dump_prompt(
    oracle: Transformers | LlamaCpp, prompt_ids: list[int]
) -> dict[str, np.ndarray[Any, Any]]:
    step = oracle.start(prompt_ids)
    token: int | None = None
    tokens, top_ids, top_logprobs = [], [], []
    while len(tokens) < MAX_NEW_TOKENS and token not in oracle.eos_ids:
        token, ids, logprobs = _greedy(step(token))
        tokens.append(token)
        top_ids.append(ids)
        top_logprobs.append(logprobs)
    return {
        "prompt_ids": np.array(prompt_ids, np.int32),
        "token_ids": np.array(tokens, np.int32),
        "top_ids": np.stack(top_ids),
        "top_logprobs": np.stack(top_logprobs),
    }


def _identity(model: Path) -> dict[str, str]:
    """Return the name of a model and the sha256 of its file, or of a folder's config."""
    content = (model / "config.json" if model.is_dir() else model).read_bytes()
    return {"file": model.name, "sha256": hashlib.sha256(content).hexdigest()}


def main(name: str, model: Path) -> None:
    """Dump every prompt with one oracle."""
    oracle = ORACLES[name](model)
    prompts = json.loads(PROMPTS.read_text())
    folder = golden_folder(model, name)
    folder.mkdir(parents=True, exist_ok=True)
    for prompt in prompts:
        arrays = _dump_prompt(oracle, oracle.prompt_ids(prompt, model))
        np.savez_compressed(folder / f"{prompt['id']}.npz", allow_pickle=False, **arrays)
        print(prompt["id"], len(arrays["prompt_ids"]), len(arrays["token_ids"]), flush=True)
    manifest = {
        "oracle": {
            "name": name,
            "package": oracle.package,
            "version": version(oracle.package),
            "arithmetic": oracle.arithmetic,
        },
        "model": _identity(model),
        "prompts": [prompt["id"] for prompt in prompts],
        "max_new_tokens": MAX_NEW_TOKENS,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
