"""The generated pages of ``docs/reference`` and ``docs/status.md``: one table row a page.

``python -m pyvt.testing.docs`` writes the pages of a checkout, ``--check`` compares them. A page is
a path and a function that takes the root of the checkout and returns the text. The text depends on
the committed files alone: not on the machine, nor on the versions of Python and its packages.
"""

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pyvt
from pyvt import envs, ops
from pyvt.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    SchedulerConfig,
    SpeculativeConfig,
)
from pyvt.config.server import ServerConfig
from pyvt.dispatch import get_op
from pyvt.errors import ConfigError, did_you_mean
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.dtype import DTYPES
from pyvt.testing import docs_performance as performance
from pyvt.testing import docs_targets as targets
from pyvt.testing.docs_formats import formats_page
from pyvt.testing.docs_parity import parity_rows, parity_sections, status_rows
from pyvt.testing.op_cases import FAMILIES, OpCase

NOTE = "<!-- Written by `python -m pyvt.testing.docs`; do not edit. -->\n"
SETTINGS = (
    EngineConfig,
    CacheConfig,
    SchedulerConfig,
    DeviceConfig,
    SpeculativeConfig,
    ServerConfig,
    SamplingParams,
)
_OPS_HEADER = ("op", "what", "dtypes", "composite of", "cases", "goldens", "origin of the goldens")


@dataclass(frozen=True, slots=True)
class Page:
    """A generated page: its path in the checkout and the function that returns its text."""

    path: str
    render: Callable[[Path], str]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def code(names: Iterable[str]) -> str:
    """Return names as code, separated by commas; a dash where there are none."""
    return ", ".join(f"`{name}`" for name in names) or "–"


def summary_of(thing: Any) -> str:
    """Return the first paragraph of a docstring as one line of Markdown."""
    paragraph = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("``", "`")


def signature_of(function: Callable[..., Any]) -> str:
    """Return a function's name and parameters with their defaults, without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=signature.empty)
    return f"{function.__name__}{shown}"


def ops_page(root: Path) -> str:
    """Return the page of ops: a section for each family, a row for each op."""
    text = (
        f"{NOTE}\n# Ops\n\n"
        "Every public op of `pyvt.ops`; the docstring of an op is its contract. *Dtypes* are the\n"
        "float dtypes that its cases run in; a case gives one golden for each. An origin of\n"
        "*self* is an f64 composite of the published formula, where no public code exists.\n"
    )
    for cases in FAMILIES:
        name = cases.__name__.rpartition(".")[2]
        family = import_module(f"pyvt.ops.{name}")
        names = dict.fromkeys(case.op for case in cases.CASES)
        rows = [_op_row(op, [c for c in cases.CASES if c.op == op], root) for op in names]
        intro = (inspect.getdoc(family) or "").replace("``", "`")
        text += f"\n## {name}\n\n{intro}\n\n{table(_OPS_HEADER, rows)}"
    return text


def _op_row(op: str, cases: Sequence[OpCase], root: Path) -> Sequence[str]:
    function = getattr(ops, op)
    dtypes = [name for name in DTYPES if any(name in case.dtypes for case in cases)]
    goldens = [dtype for case in cases if case.has_golden for dtype in case.dtypes]
    manifest = json.loads((root / "parity/goldens/ops" / op / "manifest.json").read_text())
    origins = dict.fromkeys(case.origin for case in cases if case.has_golden)
    return (
        f"`{signature_of(function)}`",
        summary_of(function),
        " ".join(dtypes),
        code(get_op(op).composite),
        str(len(cases)),
        str(len(goldens)),
        _origin(origins, manifest["oracle"]["callable"]),
    )


def _origin(origins: Iterable[str], called: str) -> str:
    """Return the kinds of origin and what was called; a SELF row names itself already."""
    kinds = ", ".join(origins)
    return called if called.lower().startswith(kinds) else f"{kinds}: {called}"


def envs_page(root: Path) -> str:
    """Return the page of environment variables."""
    rows = [
        (f"`{var.name}`", f"`{var.default}`" if var.default else "–", var.help)
        for var in envs.ENV_VARS
    ]
    return (
        f"{NOTE}\n# Environment variables\n\n"
        "For debugging and A/B runs; the settings of a run are options of a command or fields of\n"
        "`pyvt.config`. A variable that is set to nothing counts as unset.\n\n"
        f"{table(('variable', 'default', 'what'), rows)}"
    )


def config_page(root: Path) -> str:
    """Return the page of settings: a section for each dataclass, a row for each field with help."""
    text = (
        f"{NOTE}\n# Settings\n\n"
        "The fields of the settings of an engine and of a request; options of commands are made\n"
        "from them. `LLM(model, ...)` takes those of an engine by name, whatever their section.\n"
    )
    for owner in SETTINGS:
        rows = [
            (f"`{f.name}`", "–" if f.default is MISSING else f"`{f.default!r}`", _help_of(f))
            for f in fields(owner)
            if "help" in f.metadata
        ]
        body = table(("setting", "default", "what"), rows)
        text += f"\n## {owner.__name__}\n\n{summary_of(owner)}\n\n{body}"
    return text


def _help_of(setting: Any) -> str:
    choices = setting.metadata.get("choices")
    return str(setting.metadata["help"]) + (
        f"; one of {', '.join(map(str, choices))}" if choices else ""
    )


def parity_page(root: Path) -> str:
    """Return the page of measured errors."""
    return (
        f"{NOTE}\n# Parity\n\n"
        "What a run of every golden measured, `pyvt parity run --record`. The error is the\n"
        "largest absolute one over an op's goldens; the share is the largest of the bound, which\n"
        "`pyvt/testing/tolerance.py` gives by op class and dtype; 1 is the bound.\n\n"
        f"{table(('section', 'backend', 'label', 'figure'), parity_sections(root))}\n"
        f"{table(('op', 'backend', 'dtype', 'goldens', 'error', 'share'), parity_rows(root))}"
    )


def status_page(root: Path) -> str:
    """Return the page of capabilities."""
    return (
        f"{NOTE}\n# Status\n\n"
        "One row a capability, with the command that shows it. Labels: PASS ran and was seen;\n"
        "SIMULATED ran on an emulator; NOT_RUN_HARDWARE needs a device, NOT_RUN_ARTIFACT a\n"
        "checkpoint or program, that was not there; NOT_CLAIMED is not built. A row that did not\n"
        "run has no figure.\n\n"
        f"{table(('capability', 'command', 'label', 'figure'), status_rows(root))}"
        f"\n## Long tests\n\n{table(targets.HEADER, targets.target_rows())}"
    )


def performance_page(root: Path) -> str:
    """Return the page of measured speed."""
    by_kind = {kind: performance.records(root, kind) for kind in performance.KINDS}
    every = [record for found in by_kind.values() for record in found.values()]
    text = (
        f"{NOTE}\n# Performance\n\n"
        "What `pyvt bench` measured, from the run records in `benchmarks/results`; `make bench`\n"
        "takes them anew. Engines take turns in one run, each in a process of its own; a ratio\n"
        "is the median over repetitions, ± half its range. A share is of a limit of the same run:\n"
        "for decode a plain read of memory, else the multiply-add loop of the weight format\n"
        "(`csrc/cpu/machine_limits.cpp`). Tokens/s move with the machine; ratios are the claim.\n"
        "pyvt samples greedily, the peers sample nothing; each has written its cache once before.\n"
        "A record that is taken anew is compared with the one before: what fell by more than both\n"
        "vary stands under Fallen.\n\n"
        f"Taken on: {performance.machine_line(every) or 'nothing yet'}.\n"
    )
    missing = performance.missing_models(by_kind["peers-"])
    if missing:
        text += f"\nNot measured yet: {code(missing)}.\n"
    for title, header, kind, rows in performance.SECTIONS:
        found = by_kind if kind is None else {kind: by_kind[kind]}
        lines = [
            row for records in found.values() for record in records.values() for row in rows(record)
        ]
        if lines:
            text += f"\n## {title}\n\n{table(header, lines)}"
        elif kind is None and every:
            text += f"\n## {title}\n\nNo figure of these records.\n"
    if (root / "docs" / "performance.svg").is_file():
        text += "\n![shares of the limit, and ratios to peers](performance.svg)\n"
    return text


PAGES = (
    Page("docs/performance.md", performance_page),
    Page("docs/reference/ops.md", ops_page),
    Page("docs/reference/envs.md", envs_page),
    Page("docs/reference/config.md", config_page),
    Page("docs/reference/formats.md", lambda _: formats_page()),
    Page("docs/reference/parity.md", parity_page),
    Page("docs/status.md", status_page),
)


def checkout() -> Path:
    """Return the root of the checkout that pyvt is imported from."""
    root = Path(pyvt.__file__).parents[1]
    if not (root / "parity" / "goldens").is_dir():
        raise ConfigError(f"[docs] checkout: expected parity/goldens in {str(root)!r}, got none")
    return root


def stale_pages(root: Path, pages: Sequence[Page] = PAGES) -> list[str]:
    """Return the paths of the pages that are missing or differ from what would be written."""
    return [
        page.path
        for page in pages
        if not (root / page.path).is_file() or (root / page.path).read_text() != page.render(root)
    ]


def write_pages(root: Path, pages: Sequence[Page] = PAGES) -> None:
    """Write the pages."""
    for page in pages:
        path = root / page.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page.render(root))


def main(args: Sequence[str]) -> int:
    """Write the pages of this checkout, or with ``--check`` name the stale ones; exit code."""
    if unknown := set(args) - {"--check"}:
        name = sorted(unknown)[0]
        raise ConfigError(f"[docs] option: {name!r} is unknown; {did_you_mean(name, ['--check'])}")
    root = checkout()
    if not args:
        write_pages(root)
        return 0
    stale = stale_pages(root)
    for path in stale:
        print(f"{path}: stale, run `make docs`")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
