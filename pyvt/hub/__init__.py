"""Models by name: the catalogue of aliases, Hugging Face repositories and local paths."""

from pyvt.hub.fetch import locate, pull
from pyvt.hub.names import DEFAULT_MODEL

__all__ = ["DEFAULT_MODEL", "locate", "pull"]
