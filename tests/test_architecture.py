"""The laws of the house that no linter knows: sizes, names, mirrors, clean text."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
MAX_LINES = {"pyvt": 600, "parity": 600, "benchmarks": 600, "csrc": 600, "tests": 800}
MAX_FUNCTION_LINES = 60
BANNED_FILES = {"utils.py", "helpers.py", "common.py", "misc.py"}
# Words for which the glossary has another: they may not name a function's argument.
BANNED_ARGUMENTS = {
    "n_head", "n_embd", "page_table", "page_size", "query_start_loc", "context_lens",
    "cache_seqlens", "sm_scale", "out_loc", "seq_id", "start_pos", "topk_ids",
}  # fmt: skip


def _sources(folder: str) -> list[Path]:
    suffixes = {".py", ".h", ".cpp", ".cu", ".cuh"}
    return sorted(p for p in (REPO / folder).rglob("*") if p.suffix in suffixes and p.is_file())


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _body_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring, which may be as long as it needs."""
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    start = first.end_lineno if is_docstring else node.lineno
    assert start is not None
    assert node.end_lineno is not None
    return node.end_lineno - start


@pytest.mark.parametrize("folder", MAX_LINES)
def test_files_stay_under_the_wall(folder: str) -> None:
    long = {
        str(path.relative_to(REPO)): len(path.read_text().splitlines())
        for path in _sources(folder)
        if len(path.read_text().splitlines()) > MAX_LINES[folder]
    }

    assert long == {}


def test_functions_fit_a_screen() -> None:
    long = [
        f"{path.relative_to(REPO)}:{node.lineno} {node.name} {_body_lines(node)}"
        for path in _sources("pyvt")
        if path.suffix == ".py"
        for node in _functions(path)
        if _body_lines(node) > MAX_FUNCTION_LINES
    ]

    assert long == []


def test_no_file_is_named_for_nothing() -> None:
    assert [p for p in _sources("pyvt") if p.name in BANNED_FILES] == []


def test_arguments_use_the_words_of_the_glossary() -> None:
    found = [
        f"{path.relative_to(REPO)}:{node.lineno} {arg.arg}"
        for path in _sources("pyvt")
        if path.suffix == ".py"
        for node in _functions(path)
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if arg.arg in BANNED_ARGUMENTS
    ]

    assert found == []


def test_public_functions_have_docstrings() -> None:
    bare = [
        f"{path.relative_to(REPO)}:{node.lineno} {node.name}"
        for path in _sources("pyvt")
        if path.suffix == ".py"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and ast.get_docstring(node) is None
    ]

    assert bare == []


def test_ops_have_one_stem_everywhere() -> None:
    families = {p.stem for p in (REPO / "pyvt" / "ops").glob("*.py")} - {"__init__", "numerics"}
    cases = {p.stem for p in (REPO / "pyvt/testing/op_cases").glob("*.py")} - {"__init__", "case"}
    oracles = {p.stem for p in (REPO / "parity/oracles").glob("*.py")} - {"__init__", "oracle"}

    assert cases <= families
    assert oracles <= families


def test_only_parity_imports_torch() -> None:
    pattern = re.compile(r"^\s*(import|from) (torch|transformers|llama_cpp)\b", re.M)
    users = [
        str(path.relative_to(REPO))
        for folder in ("pyvt", "tests")
        for path in _sources(folder)
        if pattern.search(path.read_text())
    ]

    assert users == []


def test_no_large_file_is_committed() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPO, capture_output=True, text=True, check=True
    )
    large = [
        name
        for name in listed.stdout.split("\0")
        if name and (REPO / name).is_file() and (REPO / name).stat().st_size > 1 << 20
    ]

    assert large == []
