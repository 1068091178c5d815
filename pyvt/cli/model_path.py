"""From the name that a user gives a command to the path of a model, and to its name in answers."""

from pathlib import Path

from pyvt import hub
from pyvt.cli.terminal import say


def served_name(name: str) -> str:
    """Return what answers call a model: an alias as it is, a file or folder by its last part."""
    return Path(name).name if Path(name).exists() else name


def model_path(name: str) -> Path:
    """Return the path of a model, pulling it first where it is not on this machine."""
    return hub.obtain(name, say)
