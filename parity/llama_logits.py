"""Logits of llama.cpp for a prompt: ``python parity/llama_logits.py MODEL.gguf IDS.npy OUT.npy``.

Runs in a Python that has llama-cpp-python and imports nothing of pyvt. ``IDS.npy`` holds the ids
i64 ``[T]``; ``OUT.npy`` gets the logits of all positions f32 ``[T, V]``. K and V are kept in f32.
"""

import sys

import llama_cpp
import numpy as np

_GGML_TYPE_F32 = 0


def main(path: str, ids_path: str, out_path: str) -> None:
    """Run the prompt in one batch and write the logits."""
    ids = np.load(ids_path)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        path.encode(), llama_cpp.llama_model_default_params()
    )
    if not model:
        raise SystemExit(f"error: [llama] model: expected a file that llama.cpp loads, got {path}")
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 64
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds to f16
    settings.type_k = settings.type_v = _GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, settings)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids.tolist()):
        batch.token[i], batch.pos[i], batch.logits[i] = token, i, True
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    code = llama_cpp.llama_decode(context, batch)
    if code != 0:
        raise SystemExit(f"error: [llama] decode: expected code 0, got {code}")
    rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(ids))]
    logits = np.stack([np.ctypeslib.as_array(row, (vocab_size,)) for row in rows])
    np.save(out_path, logits.astype(np.float32))


if __name__ == "__main__":
    main(*sys.argv[1:])
