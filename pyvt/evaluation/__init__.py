"""Evaluation on a text: perplexity, and how far two models' next tokens are apart."""

from pyvt.evaluation.divergence import Divergence, divergence
from pyvt.evaluation.perplexity import Perplexity, perplexity
from pyvt.evaluation.windows import Window, text_windows

__all__ = ["Divergence", "Perplexity", "Window", "divergence", "perplexity", "text_windows"]
