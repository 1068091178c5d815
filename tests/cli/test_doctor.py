"""``pyvt doctor``: what it says, and its exit code."""

import json
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from pyvt import backends
from pyvt.cli import doctor
from pyvt.errors import KernelError
from pyvt.testing import self_test
from pyvt.testing.self_test import SelfTest
from tests.cli.conftest import RunCommand


@pytest.fixture
def usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where a backend ``other`` loads and ``cpu`` does not."""
    reasons = {"cpu": "no compiler was found", "other": None}
    monkeypatch.setattr(backends, "BACKENDS", dict.fromkeys(reasons, "no.module"))
    monkeypatch.setattr(backends, "DEVICE_BACKENDS", {})
    monkeypatch.setattr(backends, "why_not", lambda name: reasons[name])
    monkeypatch.setattr(doctor, "best_backend", lambda: "other")


def _result(**found: Any) -> Any:
    return lambda backend, seconds: SelfTest(backend=backend, num_cases={"relu f32": 2}, **found)


@pytest.mark.usefixtures("usable")
def test_doctor_says_why_a_backend_is_not_there(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "self_test", _result())

    result = run_command("doctor")

    assert result.code == 0
    assert "not usable: no compiler was found" in result.out
    assert "2 cases of 1 kernels" in result.out
    assert "all equal" in result.out


@pytest.mark.usefixtures("usable")
def test_doctor_with_a_wrong_kernel_fails_and_names_it(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "self_test", _result(failures=["relu-one f32 out: max error 1"]))

    result = run_command("doctor")

    assert result.code == 1
    assert "WRONG relu-one f32 out: max error 1" in result.out


@pytest.mark.usefixtures("usable")
def test_doctor_json_is_one_object(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_test, "self_test", _result())

    facts = json.loads(run_command("doctor", "--json").out)

    assert facts["default"] == "other"
    assert facts["backends"]["cpu"]["why_not"] == "no compiler was found"
    assert facts["self_tests"].keys() == {"other"}
    assert facts["threads"]["affinity"] >= 1


def test_doctor_says_which_level_the_cpu_lacks(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_level() -> dict[str, Any]:
        raise KernelError("[cpu] PYVT_CPU_ISA: expected one of scalar, got neon")

    monkeypatch.setattr(backends, "DEVICE_BACKENDS", {})
    monkeypatch.setattr(backends, "why_not", lambda name: None)
    monkeypatch.setattr(doctor, "_native_facts", no_level)
    monkeypatch.setattr(self_test, "self_test", _result())

    result = run_command("doctor")

    assert result.code == 1
    assert "not usable: [cpu] PYVT_CPU_ISA: expected one of scalar, got neon" in result.out
    assert "self-test" not in result.out


@pytest.mark.native
def test_doctor_of_this_machine_is_sound(run_command: RunCommand) -> None:
    result = run_command("doctor", "--seconds", "0")

    assert result.code == 0
    assert "avx2" in result.out or "scalar" in result.out or "neon" in result.out


def test_doctor_tells_what_a_device_has(
    run_command: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace(
        device_name=lambda: "Card 9",
        memory=lambda: (3 << 30, 4 << 30),
        why_no_cublas=lambda: "libcublasLt.so.13: not found",
    )
    monkeypatch.setattr(backends, "BACKENDS", {})
    monkeypatch.setattr(backends, "DEVICE_BACKENDS", {"cuda": "a.module"})
    monkeypatch.setattr(backends, "why_not", lambda name: None)
    monkeypatch.setattr(doctor, "best_backend", lambda: "numpy")
    monkeypatch.setattr(self_test, "self_test", _result())
    given = import_module
    module = SimpleNamespace(native=lambda: device)
    monkeypatch.setattr(
        doctor, "import_module", lambda name: module if name == "a.module" else given(name)
    )

    result = run_command("doctor")

    assert result.code == 0
    text = "Card 9, 3.0 of 4.0 GiB free, products by own kernels: libcublasLt.so.13: not found"
    assert text in result.out
