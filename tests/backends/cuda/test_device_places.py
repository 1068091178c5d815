"""Arrays of one call lie on one device; a mix is an error that names the one that is elsewhere."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.errors import UnsupportedError
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

X, WEIGHT = np.ones((9, 4), np.float32), np.ones((3, 4), np.float32)


def on_device(array: Any) -> Any:
    return native().upload(array)


@pytest.mark.parametrize("backend", [NAME, "numpy"])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ops.linear(on_device(X), WEIGHT), "weight"),
        (lambda: ops.linear(X, on_device(WEIGHT)), "weight"),
        (lambda: ops.linear(X, WEIGHT, out=on_device(np.empty((9, 3), np.float32))), "out"),
        (lambda: ops.linear(*map(on_device, (X, WEIGHT)), out=np.empty((9, 3), np.float32)), "out"),
        (lambda: ops.rms_norm(on_device(X), np.ones(4, np.float32), 1e-6), "weight"),
    ],
)
def test_array_elsewhere_is_named(backend: str, call: Any, name: str) -> None:
    use_backend(NAME)
    use_backend(backend)

    with pytest.raises(UnsupportedError, match=rf"\] {name}: expected it on .*, got it on .*one"):
        call()
