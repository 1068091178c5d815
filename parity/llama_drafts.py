"""Logits of llama.cpp's draft head: ``python parity/llama_drafts.py MODEL.gguf IDS.npy H.npy OUT``.

Runs in a Python that has llama-cpp-python and imports nothing of pyvt. ``IDS.npy`` holds the ids
i64 ``[T + 1]``, ``H.npy`` the model's last hidden states f32 ``[T, H]`` of the first T; the head
gets each with the token behind it. ``OUT`` gets its logits f32 ``[T, V]``.
"""

import ctypes
import sys

import llama_cpp
import numpy as np

_GGML_TYPE_F32 = 0
_DECODE = 1


def main(path: str, ids_path: str, hidden_path: str, out_path: str) -> None:
    """Run the head over the prompt in one batch and write the logits."""
    ids, hidden = np.load(ids_path), np.ascontiguousarray(np.load(hidden_path), np.float32)
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.load_mtp = True
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit(f"error: [llama] model: expected a file that llama.cpp loads, got {path}")
    settings = llama_cpp.llama_context_default_params()
    settings.ctx_type = llama_cpp.LLAMA_CONTEXT_TYPE_MTP
    settings.n_ctx = settings.n_batch = settings.n_ubatch = 64
    settings.n_threads = settings.n_threads_batch = 1
    settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # it rounds to f16
    settings.type_k = settings.type_v = _GGML_TYPE_F32
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_ext_init(context)
    row_type = ctypes.POINTER(ctypes.c_float)
    for t, row in enumerate(hidden):
        idx = llama_cpp.llama_batch_ext_add_token(batch, 0, int(ids[t + 1]))
        state = llama_cpp.llama_embd(row.ctypes.data_as(row_type), 1, hidden.shape[1])
        position = (ctypes.c_int32 * 1)(t)
        if not llama_cpp.llama_batch_ext_set_embd_token(batch, idx, state):
            raise SystemExit(f"error: [llama] state: expected H it takes, got {hidden.shape[1]}")
        llama_cpp.llama_batch_ext_set_pos(batch, idx, position)
        llama_cpp.llama_batch_ext_set_output_logits(batch, idx, True)
    code = llama_cpp.llama_process(context, _DECODE, batch)
    if code != 0:
        raise SystemExit(f"error: [llama] process: expected code 0, got {code}")
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(hidden))]
    logits = np.stack([np.ctypeslib.as_array(row, (vocab_size,)) for row in rows])
    np.save(out_path, logits.astype(np.float32))


if __name__ == "__main__":
    main(*sys.argv[1:])
