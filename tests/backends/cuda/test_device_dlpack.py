"""DLPack with arrays of other libraries on the device under test: one memory for both sides."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, native

pytestmark = [NEEDS_DEVICE]

HOST = np.arange(-12, 12, dtype=np.float32).reshape(4, 6)


class Peer:
    """What a test asks of a library: an array from a host array, and one from a tensor."""

    def __init__(self, name: str) -> None:
        if name == "cupy" and NAME == "cuda-emu":
            pytest.skip("cupy has no arrays in the memory of the host")
        reason = f"{name} is not installed here"
        self.library: Any = pytest.importorskip(name, reason=reason, exc_type=ImportError)
        self.is_torch = name == "torch"

    def array(self, host: Any) -> Any:
        if not self.is_torch:
            return self.library.asarray(host)
        return self.library.from_numpy(host).to("cpu" if NAME == "cuda-emu" else "cuda")

    def shared(self, tensor: Any) -> Any:
        return self.library.from_dlpack(tensor)

    def host(self, array: Any) -> Any:
        return array.cpu().numpy() if self.is_torch else self.library.asnumpy(array)

    def address(self, array: Any) -> int:
        return int(array.data_ptr() if self.is_torch else array.data.ptr)


@pytest.fixture(params=["torch", "cupy"])
def peer(request: pytest.FixtureRequest) -> Peer:
    use_backend(NAME)
    return Peer(request.param)


def test_tensor_is_an_array_of_the_library_without_a_copy(peer: Peer) -> None:
    tensor = native().upload(HOST)[1:, ::2]

    shared = peer.shared(tensor)

    assert peer.address(shared) == tensor.address
    np.testing.assert_array_equal(peer.host(shared), HOST[1:, ::2])


def test_op_writes_into_an_array_of_the_library(peer: Peer) -> None:
    array = peer.array(HOST.copy())

    tensor = ops.from_dlpack(array)
    ops.relu(tensor, out=tensor)
    native().synchronize()

    assert tensor.address == peer.address(array)
    np.testing.assert_array_equal(peer.host(array), np.maximum(HOST, 0))


def test_bf16_goes_both_ways(peer: Peer) -> None:
    if not peer.is_torch:
        pytest.skip("cupy has no bf16")
    given = peer.array(HOST.copy()).to(peer.library.bfloat16)

    back = peer.shared(ops.from_dlpack(given))

    assert back.dtype == peer.library.bfloat16
    assert peer.address(back) == peer.address(given)
