"""The gated delta rule by chunks on tensor cores, with states kept inside of them."""

from typing import Any

import numpy as np
import pytest

from pyvt import ops
from pyvt.dispatch import use_backend
from pyvt.testing.op_cases import OpCase, run_case, run_case_on
from pyvt.testing.op_cases.gated_delta import net_call, rule_call
from pyvt.testing.op_cases.state_slots import EVERY, NONE, slot_arrays
from pyvt.testing.tolerance import compare
from tests.backends.cuda.under_test import NAME, NEEDS_DEVICE, has_used_tensor_cores, native

pytestmark = [NEEDS_DEVICE]

# A slot inside of a chunk and one at its end; requests that go token by token between others.
KEPT = slot_arrays([100], [0], NONE, num_slots=1)
KEPT["state_slots"][[5, 63, 70]] = [2, 0, 1]
CASES: dict[str, tuple[Any, dict[str, Any], tuple[int, int, int, int]]] = {
    "two_chunks": (rule_call, slot_arrays([70]), (1, 2, 16, 16)),
    "every_state": (rule_call, slot_arrays([33, 2], [35, -1], EVERY, num_slots=35), (1, 1, 20, 9)),
    "kept_inside": (rule_call, KEPT, (1, 2, 32, 24)),
    "short_between": (
        net_call,
        slot_arrays([65, 3, 0, 40], [4, -1, -1, 3], num_slots=3),
        (2, 4, 32, 40),
    ),
    "wide": (net_call, slot_arrays([66]), (1, 2, 128, 64)),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("make", "slots", "sizes"), CASES.values(), ids=CASES.keys())
def test_chunks_equal_the_scan_of_the_reference(
    make: Any, slots: dict[str, Any], sizes: tuple[int, int, int, int], dtype: str
) -> None:
    op = "gated_delta_rule" if make is rule_call else "gated_delta_net"
    case = OpCase(op=op, case_id="chunks", make=make(slots, sizes, "tiled"), mutates=("state",))
    inputs = case.inputs(dtype)
    use_backend("numpy")
    want = run_case(case, inputs)
    use_backend(NAME)

    got, has_used = has_used_tensor_cores(op, lambda: run_case_on(native(), case, inputs))

    assert has_used in (True, None)
    for name in want:
        difference = compare(got[name], want[name], "delta_rule", dtype)
        assert difference.is_within, f"{name}: {difference.reason}"


@pytest.mark.parametrize(("lengths", "launches"), [([70], 2), ([40, 3], 3), ([15, 15], 1)])
def test_long_requests_alone_go_by_chunks(lengths: list[int], launches: int) -> None:
    case = OpCase(
        op="gated_delta_rule",
        case_id="count",
        make=rule_call(slot_arrays(lengths), (1, 1, 16, 8), "grouped"),
        mutates=("state",),
    )
    use_backend(NAME)
    given = {
        name: native().upload(value) if isinstance(value, np.ndarray) else value
        for name, value in case.inputs("bf16").items()
    }
    before = native().num_launches()

    ops.gated_delta_rule(**given)

    assert native().num_launches() - before == launches


def test_heads_of_a_wider_row_equal_heads_by_themselves() -> None:
    make = rule_call(slot_arrays([40]), (2, 2, 32, 16), "grouped")
    inputs = OpCase(op="gated_delta_rule", case_id="views", make=make).inputs("bf16")
    use_backend(NAME)
    given = {k: native().upload(v) if isinstance(v, np.ndarray) else v for k, v in inputs.items()}
    want = ops.gated_delta_rule(**given).numpy()
    # 3 columns in front: no row lies at a multiple of 16 bytes.
    columns = [np.zeros((40, 3), inputs["q"].dtype), inputs["q"], inputs["k"]]
    row = native().upload(np.concatenate([part.reshape(40, -1) for part in columns], axis=1))
    given |= {"q": row[:, 3:67].reshape(40, 2, 32), "k": row[:, 67:].reshape(40, 2, 32)}

    got = ops.gated_delta_rule(**given).numpy()

    assert got.tobytes() == want.tobytes()
