"""What llama.cpp makes of a GGUF file: ``python parity/run_llama_cpp.py MODEL.gguf TEXT``.

Runs in a Python that has llama-cpp-python. Prints one JSON object: ``ids`` of the text, control
tokens in it included, the ``argmax`` after each of them, and the last row of ``logits``.
"""

import ctypes
import json
import sys

import llama_cpp
import numpy as np


def main() -> None:
    """Load the file, run the text once and print."""
    path, text = sys.argv[1:]
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    model = llama_cpp.Llama(path, n_ctx=256, logits_all=True, verbose=False)
    ids = model.tokenize(text.encode(), add_bos=True, special=True)
    model.eval(ids)
    rows = np.array(model.scores[: len(ids)])
    print(json.dumps({"ids": ids, "argmax": rows.argmax(-1).tolist(), "logits": rows[-1].tolist()}))


if __name__ == "__main__":
    main()
