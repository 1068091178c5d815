"""Models by name: the catalogue of aliases, Hugging Face repositories and local paths."""

from pyvt.hub.fetch import locate, obtain, pull
from pyvt.hub.local import LocalModel, list_models, remove_model
from pyvt.hub.names import DEFAULT_MODEL

__all__ = ["DEFAULT_MODEL", "LocalModel", "list_models", "locate", "obtain", "pull", "remove_model"]
