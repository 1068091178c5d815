"""Generated pages: fresh, complete, and stable."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pyvt import envs
from pyvt.dispatch import all_ops
from pyvt.errors import ConfigError
from pyvt.testing import docs
from pyvt.testing.docs import PAGES, Page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_page_is_fresh(repo: Path, page: Page) -> None:
    assert (repo / page.path).read_text() == page.render(repo), "run `make docs`"


def test_reference_folder_holds_generated_pages_only(repo: Path) -> None:
    found = {str(p.relative_to(repo)) for p in (repo / "docs" / "reference").rglob("*.*")}

    assert found == {page.path for page in PAGES if page.path.startswith("docs/reference/")}


def test_ops_page_has_a_row_for_every_op(repo: Path) -> None:
    rows = re.findall(r"^\| `(\w+)\(", docs.ops_page(repo), re.MULTILINE)

    assert sorted(rows) == [op.name for op in all_ops()]


def test_ops_page_shows_nothing_of_the_machine(repo: Path) -> None:
    text = docs.ops_page(repo)

    assert str(repo) not in text
    assert not re.search(r"ndarray\[|<[a-z]+ .* at 0x", text)


def test_envs_page_has_a_row_for_every_variable(repo: Path) -> None:
    rows = re.findall(r"^\| `(PYVT_\w+)`", docs.envs_page(repo), re.MULTILINE)

    assert rows == [var.name for var in envs.ENV_VARS]


def test_config_page_has_a_row_for_every_setting(repo: Path) -> None:
    rows = re.findall(r"^\| `(\w+)`", docs.config_page(repo), re.MULTILINE)

    assert {"model", "block_size", "max_num_seqs", "dtype", "temperature"} <= set(rows)
    assert rows == [f.name for cls in docs.SETTINGS for f in fields(cls) if "help" in f.metadata]


def test_stale_pages_are_found_and_written(tmp_path: Path) -> None:
    pages = (Page("docs/a.md", lambda _: "a\n"), Page("b.md", lambda root: f"{root.name}\n"))
    (tmp_path / "b.md").write_text("old\n")

    assert docs.stale_pages(tmp_path, pages) == ["docs/a.md", "b.md"]

    docs.write_pages(tmp_path, pages)

    assert docs.stale_pages(tmp_path, pages) == []
    assert (tmp_path / "docs" / "a.md").read_text() == "a\n"


def test_check_names_stale_pages_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "stale_pages", lambda _: ["docs/reference/ops.md"])

    assert docs.main(["--check"]) == 1
    assert capsys.readouterr().out == "docs/reference/ops.md: stale, run `make docs`\n"


def test_check_of_fresh_pages_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert docs.main(["--check"]) == 0
    assert capsys.readouterr().out == ""


def test_unknown_option_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"'--chekc' is unknown; did you mean '--check'\?"):
        docs.main(["--chekc"])


def test_table_escapes_bars() -> None:
    assert docs.table(("a", "b"), [("x|y", "")]) == "| a | b |\n| --- | --- |\n| x\\|y |  |\n"
