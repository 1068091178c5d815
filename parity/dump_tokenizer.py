"""Write the goldens of tokenizers and chat templates with other people's code.

1. ``render`` (transformers): every conversation through every template, and the ids of Qwen3's;
   needs the fixtures. Writes ``render_<template>.json``.
2. ``corpus`` (transformers): every conversation through every template of the fixture
   ``chat-templates``. Writes ``corpus.json``: for each template the first 16 hex digits of each
   rendered text's sha256, or ``raises ERROR``.
3. ``spm-file FOLDER`` (gguf): the small SentencePiece vocabulary as files for 4.
4. ``llama FOLDER`` (llama-cpp-python): ids of SmolLM2's GGUF and of the small vocabulary. Writes
   ``smollm2_ids.json`` and ``spm_ids.json``.

Run as ``PYTHONPATH=. python parity/dump_tokenizer.py STEP [FOLDER]``.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from pyvt.testing.chats import CONVERSATIONS, SPECIALS, TEMPLATES, Chat, StoppedClock
from pyvt.testing.text_corpus import corpus
from pyvt.testing.tiny_spm import tiny_spm_metadata

GOLDENS = Path(__file__).with_name("goldens") / "tokenizer"
FIXTURES = Path(__file__).parent.parent / ".fixtures"
SMOLLM2 = FIXTURES / "SmolLM2-135M-Instruct.Q4_1.gguf"
QWEN3 = FIXTURES / "qwen3-tokenizer"
CHAT_TEMPLATES = FIXTURES / "chat-templates.json"
NUM_TEXTS = 400
_MAX_GOLDEN_BYTES = 100_000


def _write(name: str, content: dict[str, Any]) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    path = GOLDENS / f"{name}.json"
    path.write_text(json.dumps(content, ensure_ascii=True, separators=(",", ":")) + "\n")
    size = path.stat().st_size
    assert size <= _MAX_GOLDEN_BYTES, f"{path}: {size} bytes"
    print(f"{name}: {size} bytes")


def _qwen3() -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_file=str(QWEN3 / "tokenizer.json"))


def _oracle() -> dict[str, Any]:
    import transformers

    return {
        "callable": "transformers.PreTrainedTokenizerFast.apply_chat_template",
        "transformers": transformers.__version__,
    }


def _apply(tokenizer: Any, chat: Chat, **settings: Any) -> Any:
    from transformers.utils.chat_template_utils import _normalize_chat_messages

    settings = {"add_generation_prompt": True, **chat, **settings}
    messages = _normalize_chat_messages(settings.pop("messages"))
    return tokenizer.apply_chat_template(messages, **settings)


def _dump_render() -> None:
    import gguf

    config = json.loads((QWEN3 / "tokenizer_config.json").read_text())
    qwen3 = _qwen3()
    smollm2 = gguf.GGUFReader(SMOLLM2).fields["tokenizer.chat_template"].contents()
    templates = {**TEMPLATES, "qwen3": config["chat_template"], "smollm2": smollm2}
    for template_name, template in templates.items():
        qwen3.chat_template = template
        cases: dict[str, Any] = {}
        for name, chat in CONVERSATIONS.items():
            specials = SPECIALS if template_name in TEMPLATES else {}
            try:
                text = _apply(qwen3, chat, tokenize=False, **specials)
            except Exception as error:  # whatever a template raises is its golden
                cases[name] = {"error": str(error)}
                continue
            cases[name] = {"text": text}
            if template_name == "qwen3":
                cases[name]["ids"] = _apply(qwen3, chat, return_dict=False)
        _write(f"render_{template_name}", {"oracle": _oracle(), "cases": cases})


def _dump_corpus() -> None:
    from transformers.utils import chat_template_utils

    chat_template_utils.datetime = StoppedClock
    tokenizer = _qwen3()
    text = CHAT_TEMPLATES.read_text()
    templates: dict[str, dict[str, str]] = {}
    for name, template in json.loads(text).items():
        tokenizer.chat_template = template
        templates[name] = {}
        for conversation, chat in CONVERSATIONS.items():
            try:
                rendered = _apply(tokenizer, chat, tokenize=False, **SPECIALS)
            except Exception as error:  # whatever a template raises is its golden
                templates[name][conversation] = f"raises {type(error).__name__}"
                continue
            templates[name][conversation] = hashlib.sha256(rendered.encode()).hexdigest()[:16]
    source = hashlib.sha256(text.encode()).hexdigest()
    _write("corpus", {"oracle": _oracle(), "source_sha256": source, "templates": templates})


def _write_spm_files(folder: Path) -> None:
    import gguf

    for prefix in (True, False):
        metadata = tiny_spm_metadata(add_space_prefix=prefix)
        writer = gguf.GGUFWriter(folder / f"spm_{prefix}.gguf", "llama")
        writer.add_context_length(64)
        writer.add_embedding_length(8)
        writer.add_block_count(1)
        writer.add_feed_forward_length(8)
        writer.add_head_count(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_tokenizer_model(metadata["tokenizer.ggml.model"])
        writer.add_token_list(metadata["tokenizer.ggml.tokens"])
        writer.add_token_scores(metadata["tokenizer.ggml.scores"])
        writer.add_token_types(metadata["tokenizer.ggml.token_type"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(prefix)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()


def _llama_ids(path: Path, texts: list[str]) -> list[list[int]]:
    import llama_cpp

    model = llama_cpp.llama_model_default_params()
    model.vocab_only = True
    loaded = llama_cpp.llama_model_load_from_file(str(path).encode(), model)
    vocab = llama_cpp.llama_model_get_vocab(loaded)
    found = []
    for text in texts:
        data = text.encode()
        room = 4 * len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(vocab, data, len(data), ids, room, False, True)
        assert count >= 0, f"{text!r} needs {-count} tokens"
        found.append(list(ids[:count]))
    llama_cpp.llama_model_free(loaded)
    return found


def _dump_llama(folder: Path) -> None:
    import llama_cpp

    oracle = {"callable": "llama_tokenize", "llama-cpp-python": llama_cpp.__version__}
    # llama.cpp takes C strings in some places, so no NUL.
    texts = [text for text in corpus(NUM_TEXTS, seed=7) if "\0" not in text]
    ids = _llama_ids(SMOLLM2, texts)
    _write("smollm2_ids", {"oracle": oracle, "texts": texts, "ids": ids})
    texts = [text for text in corpus(160, seed=8) if "\0" not in text and len(text) < 60]
    texts += ["hello  the abcabc", "<|user|>hello<|end|> the", "a<tool>in", "    x", "llll 123"]
    cases = {
        f"add_space_prefix={prefix}": _llama_ids(folder / f"spm_{prefix}.gguf", texts)
        for prefix in (True, False)
    }
    _write("spm_ids", {"oracle": oracle, "texts": texts, "ids": cases})


def main(arguments: list[str]) -> None:
    """Run one step."""
    match arguments:
        case ["render"]:
            _dump_render()
        case ["corpus"]:
            _dump_corpus()
        case ["spm-file", folder]:
            _write_spm_files(Path(folder))
        case ["llama", folder]:
            _dump_llama(Path(folder))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
