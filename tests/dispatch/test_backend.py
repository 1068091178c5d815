"""Records of backends."""

import pytest

from pyvt.dispatch import backend
from pyvt.dispatch.backend import Backend, add_backend, selected_backend
from pyvt.errors import ConfigError


@pytest.fixture(autouse=True)
def own_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that end with the test."""
    monkeypatch.setattr(backend, "_BACKENDS", {})


def test_reference_has_an_empty_record() -> None:
    assert selected_backend() == Backend(name="numpy")


def test_selected_backend_is_the_added_record(monkeypatch: pytest.MonkeyPatch) -> None:
    added = Backend(name="fast", prepack=lambda parts: None)
    add_backend(added)
    monkeypatch.setattr(backend, "current_backend", lambda: "fast")

    assert selected_backend() is added


def test_backend_is_added_once() -> None:
    add_backend(Backend(name="fast"))

    with pytest.raises(ConfigError, match="'fast' is added twice"):
        add_backend(Backend(name="fast"))
