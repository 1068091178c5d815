"""Constrained decoding over llguidance: from a request's settings to masks of tokens."""

from pyvt.structured.compiler import GrammarCompiler

__all__ = ["GrammarCompiler"]
