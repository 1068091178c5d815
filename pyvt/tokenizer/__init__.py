"""Text to ids and back, and chats to text."""

from pyvt.tokenizer.base import RenderedPrompt, Tokenizer
from pyvt.tokenizer.chat_template import ChatTemplate
from pyvt.tokenizer.gguf import gguf_tokenizer
from pyvt.tokenizer.hf import hf_tokenizer
from pyvt.tokenizer.incremental import IncrementalDetokenizer

__all__ = [
    "Tokenizer",
    "hf_tokenizer",
    "gguf_tokenizer",
    "IncrementalDetokenizer",
    "ChatTemplate",
    "RenderedPrompt",
]
