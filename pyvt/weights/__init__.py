"""From files to named tensors: readers of safetensors and GGUF, names, and the loader."""
