"""From the name that a user gives a command to the path of a model."""

from pathlib import Path

from pyvt import hub
from pyvt.cli.terminal import say


def model_path(name: str) -> Path:
    """Return the path of a model, pulling it first where it is not on this machine."""
    path = hub.locate(name)
    if path is None:
        say(f"{name} is not on this machine yet; pulling it, once")
        path = hub.pull(name, say)
    return path
