"""Names by which other engines call something, and what to say to who brings one along.

None of them is a second name here; an unknown name gets the hint, so nobody has to search. Only
vLLM's names of parsers, which are values and not names of settings, are taken as they are.
"""

import re
from collections.abc import Mapping

_ONE_DEVICE = "an engine runs on one device and takes no part of a model elsewhere; leave it out"
_NO_CODE = "no code of a model is ever run; leave it out"
_STRUCTURED = "use structured_outputs=StructuredOutputsParams({0}=…)"
_NO_BEAMS = "beam search is not supported; n gives several sampled answers"
_MODEL = "the model stands without an option: pyvt COMMAND MODEL"
_NO_PROMPTS = (
    "prompts are never logged; --disable-uvicorn-access-log leaves out the line of each request"
)

SETTINGS: Mapping[str, str] = {
    "tensor_parallel_size": _ONE_DEVICE,
    "pipeline_parallel_size": _ONE_DEVICE,
    "data_parallel_size": _ONE_DEVICE,
    "trust_remote_code": _NO_CODE,
    "tokenizer": "the tokenizer is the model's own; leave it out",
    "quantization": "what a model's files hold is found there; pyvt quantize makes smaller ones",
    "load_format": "what a model's files hold is found there; leave it out",
    "seed": "a seed belongs to a request: SamplingParams(seed=…)",
    "enforce_eager": "decode steps are recorded where the backend can; leave it out",
    "swap_space": "a preempted request is computed again, nothing is swapped; leave it out",
    "n_ctx": "it is max_model_len here",
    "n_threads": "it is threads here",
    "n_batch": "it is max_num_batched_tokens here",
    "n_gpu_layers": "a model runs on one backend as a whole: backend='cuda' or backend='cpu'",
    "cache_type_k": "it is kv_cache_dtype here, for keys and values",
    "max_seq_len": "it is max_model_len here",
    "num_gpu_blocks_override": "it is num_blocks here",
    "speculative_config": "it is speculation here",
    "enable_chunked_prefill": "long prompts are always prefilled in chunks; leave it out",
    "generation_config": "sampling defaults are those of the model's files; leave it out",
    "revision": "it is a part of the model's name: org/repo@revision",
    "download_dir": "models lie in the folder that PYVT_HOME says",
    "enable_lora": "adapters are not supported; merge them into the model's files",
    "limit_mm_per_prompt": "models read text only; leave it out",
    "guided_decoding_backend": "grammars have one implementation; leave it out",
    "disable_log_stats": "statistics are never logged; leave it out",
}
SAMPLING: Mapping[str, str] = {
    "max_new_tokens": "it is max_tokens here",
    "n_predict": "it is max_tokens here",
    "num_predict": "it is max_tokens here",
    "temp": "it is temperature here",
    "repeat_penalty": "it is repetition_penalty here",
    "do_sample": "temperature=0 takes the most likely token, anything above samples",
    "use_beam_search": _NO_BEAMS,
    "num_beams": _NO_BEAMS,
    "length_penalty": _NO_BEAMS,
    "logits_processors": "not supported; see logit_bias, bad_words and structured_outputs",
    "guided_json": _STRUCTURED.format("json"),
    "guided_regex": _STRUCTURED.format("regex"),
    "guided_choice": _STRUCTURED.format("choice"),
    "guided_grammar": _STRUCTURED.format("grammar"),
    "guided_decoding": _STRUCTURED.format("json"),
    "response_format": _STRUCTURED.format("json"),
}
COMMANDS: Mapping[str, str] = {
    "run": "use 'pyvt chat -m MODEL' to talk, 'pyvt generate -m MODEL PROMPT' for one answer",
    "complete": "use 'pyvt generate --raw'",
    "cli": "use 'pyvt chat' or 'pyvt generate'",
    "server": "use 'pyvt serve'",
    "api_server": "use 'pyvt serve'",
    "run-batch": "use 'pyvt batch'",
    "download": "use 'pyvt pull'",
    "show": "use 'pyvt inspect'",
    "convert": "use 'pyvt quantize'",
    "create": "use 'pyvt quantize'",
    "ls": "use 'pyvt list'",
    "remove": "use 'pyvt rm'",
    "ps": "GET /v1/models of a server tells what it has loaded",
}
# Long names of these stand for settings and sampling as well, with dashes.
OPTIONS: Mapping[str, str] = {
    "-n": "llama.cpp's -n is --max-tokens",
    "-c": "llama.cpp's -c is --max-model-len",
    "-p": "the prompt stands without an option, or comes from stdin",
    "-t": "llama.cpp's -t is --threads",
    "-tp": _ONE_DEVICE,
    "-pp": _ONE_DEVICE,
    "-dp": _ONE_DEVICE,
    "-ngl": "a model runs on one backend as a whole: --backend cuda or --backend cpu",
    "-m": _MODEL,
    "--model": _MODEL,
    "--device": "it is --backend here",
    "--enable-auto-tool-choice": "tool calls are found out from the chat template; leave it out",
    "--enable-reasoning": "reasoning is found out from the chat template; leave it out",
    "--uvicorn-log-level": "PYVT_LOG_LEVEL is the level of the log; leave it out",
    "--root-path": "routes begin at /; let the proxy in front take its path away",
    "--disable-log-requests": _NO_PROMPTS,
    "--enable-log-requests": _NO_PROMPTS,
    "--no-enable-log-requests": _NO_PROMPTS,
    "--no-enable-chunked-prefill": "long prompts are always prefilled in chunks; leave it out",
    "-f": "a prompt may come from stdin: pyvt generate < FILE",
    "--prompt": "the prompt stands without an option, or comes from stdin",
    "--ctx-size": "it is --max-model-len here",
    "--n-predict": "it is --max-tokens here",
    "--predict": "it is --max-tokens here",
    "--temp": "it is --temperature here",
    "--repeat-penalty": "it is --repetition-penalty here",
    "--n-gpu-layers": "a model runs on one backend as a whole: --backend cuda or --backend cpu",
    "--gpu-layers": "a model runs on one backend as a whole: --backend cuda or --backend cpu",
    "--batch-size": "it is --max-num-batched-tokens here",
    "--parallel": "it is --max-num-seqs here",
    "--cache-type-k": "it is --kv-cache-dtype here, for keys and values",
    "--cache-type-v": "it is --kv-cache-dtype here, for keys and values",
    "--flash-attn": "attention never needs prompt × prompt of memory; leave it out",
    "--mlock": "not supported; leave it out",
    "--no-mmap": "files are mapped and read once; leave it out",
    "--hf-repo": "name the repository with --model",
    "--grammar-file": "it is --grammar here, which takes a file",
}

# Setting of the server → a parser's name in vLLM → what it is called here.
PARSERS: Mapping[str, Mapping[str, str]] = {
    "tool_call_parser": {
        "qwen3_coder": "qwen_xml",
        "qwen3_xml": "qwen_xml",
        "llama3_json": "llama_json",
        "llama4_json": "llama_json",
        "llama4_pythonic": "pythonic",
    },
    "reasoning_parser": {"qwen3": "think", "deepseek_r1": "think"},
}


def hint_for_option(name: str) -> str | None:
    """Return the hint for an option that no command has, None where there is none."""
    found = OPTIONS.get(name)
    setting = name.removeprefix("--").replace("-", "_")
    found = found or SETTINGS.get(setting) or SAMPLING.get(setting)
    # Settings are called by their options on the command line.
    return None if found is None else re.sub(r"^it is (\w+) here", _as_option, found)


def _as_option(found: re.Match[str]) -> str:
    return f"it is --{found[1].replace('_', '-')} here"
