"""Text to ids and back, and chats to text. What renders templates is imported when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyvt.tokenizer.base import RenderedPrompt, Tokenizer
from pyvt.tokenizer.gguf import gguf_tokenizer
from pyvt.tokenizer.hf import hf_tokenizer
from pyvt.tokenizer.incremental import IncrementalDetokenizer

if TYPE_CHECKING:
    from pyvt.tokenizer.chat_template import ChatTemplate

__all__ = [
    "Tokenizer",
    "hf_tokenizer",
    "gguf_tokenizer",
    "IncrementalDetokenizer",
    "ChatTemplate",
    "RenderedPrompt",
]


def __getattr__(name: str) -> Any:
    if name == "ChatTemplate":
        return import_module("pyvt.tokenizer.chat_template").ChatTemplate
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
