"""llama.cpp's own quantiser, for ``bench_quantize``: ``peer_llama_quantize.py IN OUT FTYPE N``.

Runs in a Python that has llama-cpp-python; FTYPE is the number of a file type, N the threads. It
prints the seconds.
"""

import ctypes
import sys
import time

import llama_cpp

if __name__ == "__main__":
    source, target, file_type, num_threads = sys.argv[1:]
    silent = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = int(file_type), int(num_threads)
    start = time.perf_counter()
    code = llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(params))
    if code != 0:
        sys.exit(f"llama_model_quantize: code {code}")
    print(time.perf_counter() - start)
