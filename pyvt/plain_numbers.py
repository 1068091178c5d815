"""Numbers and lists as Python has them, of what NumPy, torch and the like hold."""

from typing import Any


def plain(value: Any) -> Any:
    """Return an array or its scalar as Python's numbers; a list that holds some, with them plain.

    Anything else is returned as it is, bytes and views of them too.
    """
    if hasattr(value, "tolist") and not isinstance(value, memoryview):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if any(hasattr(kind, "tolist") for kind in kinds - {memoryview}):
            return [plain(each) for each in value]
    return value
