"""``pyvt parity run``: every golden on a backend, with counts and measured errors.

Sections, each a table row of ``SECTIONS``: ops, tiny models, a real file in lockstep with the
reference, its greedy text, and rows for checkpoints that this checkout cannot bring. A section
prints its lines and returns a label and what it measured; ``--record`` keeps both, for the pages of
``docs/``.
"""

import json
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from pyvt import backends, hub
from pyvt.config import CacheConfig, DeviceConfig, EngineConfig
from pyvt.config.device import auto_kv_dtype
from pyvt.dispatch import current_backend, use_backend
from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.engine.build import build_engine
from pyvt.errors import ConfigError, did_you_mean
from pyvt.llm import LLM
from pyvt.models.registry import load_model
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.dtype import F32, dtype_named
from pyvt.testing.golden import Golden, read_op_goldens
from pyvt.testing.lockstep import run_lockstep
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelGolden, read_model_goldens
from pyvt.testing.model_runs import all_hidden, all_logits, load_case, write_case
from pyvt.testing.op_cases import ALL_CASES, run_case
from pyvt.testing.real_models import REAL_MODELS, run_real_model
from pyvt.testing.text_parity import (
    NOTHING_JUDGED,
    POLICIES,
    TextGolden,
    TextVerdict,
    judge,
    read_text_goldens,
)
from pyvt.testing.tolerance import Difference, compare
from pyvt.weights.resolve import open_model

Print = Callable[[str], None]
Array = np.ndarray[Any, Any]

# A run with fewer goldens than this has lost some; an empty folder cannot pass.
MIN_OP_GOLDENS = 1000
MIN_MODEL_GOLDENS = 17
MIN_TEXT_PROMPTS = 24
# Greedy text that runs freely: one prompt may part where two tokens are equal to rounding.
MAX_FREE_DIFFERENCES = 1
TEXT_MODEL = "smollm2-135m"
_TEXT_BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run was asked for."""

    goldens: Path
    model: Path | None
    real: Path | None
    backend: str
    print: Print


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What a section found: a label and the measured figures in words, "" where nothing ran."""

    label: str
    figure: str = ""
    op_rows: "tuple[OpRow, ...]" = ()


def _label(is_good: bool) -> str:
    return "PASS" if is_good else "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """The measured errors of one op in one dtype."""

    op: str
    dtype: str
    num_goldens: int
    max_error: float
    share_of_bound: float
    num_failed: int


def judge_op(golden: Golden) -> Difference:
    """Run the case of a golden and return the largest difference of its outputs."""
    case = next(c for c in ALL_CASES if c.op == golden.op and c.case_id == golden.case_id)
    got = run_case(case, golden.inputs)
    differences = [
        compare(got[name], want, case.op_class, golden.dtype)
        for name, want in golden.outputs.items()
    ]
    return max(differences, key=lambda d: (not d.is_within, d.share_of_bound))


def op_rows(goldens: Iterable[Golden]) -> list[OpRow]:
    """Return one row for each op and dtype, in the order of their names."""
    found: dict[tuple[str, str], list[Difference]] = {}
    for golden in goldens:
        found.setdefault((golden.op, golden.dtype), []).append(judge_op(golden))
    return [
        OpRow(
            op=op,
            dtype=dtype,
            num_goldens=len(differences),
            max_error=max(d.max_error for d in differences),
            share_of_bound=max(d.share_of_bound for d in differences),
            num_failed=sum(not d.is_within for d in differences),
        )
        for (op, dtype), differences in sorted(found.items())
    ]


def _run_ops(run: Run) -> Section:
    rows = op_rows(read_op_goldens(run.goldens))
    for row in rows:
        if row.num_failed:
            run.print(f"  FAIL {row.op} {row.dtype}: {row.num_failed} of {row.num_goldens}")
    count = sum(row.num_goldens for row in rows)
    failed = sum(row.num_failed for row in rows)
    num_ops = len({row.op for row in rows})
    figure = f"{count - failed} of {count} goldens of {num_ops} ops within tolerance"
    run.print(f"ops: {figure} (at least {MIN_OP_GOLDENS} expected)")
    label = _label(failed == 0 and count >= MIN_OP_GOLDENS)
    return Section(label=label, figure=figure, op_rows=tuple(rows))


def _judge_model(golden: ModelGolden, folder: Path, dtype: str) -> Difference:
    case = MODEL_CASES_BY_NAME[golden.case]
    path = write_case(case, folder / golden.case)
    loaded = load_case(path, dtype=dtype_named(dtype))
    differences = [
        compare(all_logits(loaded.model, [case.prompts()[name]])[0], want, "model", dtype)
        for name, want in ((n, golden.arrays[f"{n}.{dtype}"]) for n in ("short", "long"))
    ]
    return max(differences, key=lambda d: (not d.is_within, d.share_of_bound))


def _run_models(run: Run) -> Section:
    figures = []
    goldens = list(read_model_goldens(run.goldens))
    is_good = len(goldens) >= MIN_MODEL_GOLDENS
    # No native kernel computes in f64.
    dtypes = ("f32", "f64") if run.backend == REFERENCE_BACKEND else ("f32",)
    with TemporaryDirectory() as folder:
        for dtype in dtypes:
            differences = {g.case: _judge_model(g, Path(folder), dtype) for g in goldens}
            failed = [name for name, d in differences.items() if not d.is_within]
            worst = max(d.max_error for d in differences.values())
            figures.append(
                f"{dtype}: {len(goldens) - len(failed)} of {len(goldens)} tiny models equal "
                f"transformers, largest logit error {worst:.1e}"
            )
            run.print(f"models {figures[-1]}")
            for name in failed:
                run.print(f"  FAIL {name}: {differences[name].reason}")
            is_good &= not failed
    return Section(label=_label(is_good), figure="; ".join(figures))


def forced_verdicts(
    path: Path, goldens: Iterable[TextGolden], act: str = "none"
) -> dict[str, TextVerdict]:
    """Return, for each oracle, the verdict on all prompts: its tokens fed in one prefill each.

    The selected backend computes; the reference widens weights first, which changes nothing of
    ``act="none"``. Keys and values are kept as the engine keeps them.
    """
    files = open_model(path)
    kv_dtype = dtype_named(auto_kv_dtype(current_backend(), F32.name, act))
    prompts = list(goldens)
    longest = max(len(golden.forced_ids) for golden in prompts)
    is_wide = act == "none" and current_backend() == REFERENCE_BACKEND
    expand = "always" if is_wide else "never"
    loaded = load_model(files, dtype=F32, expand=expand, act=act, max_positions=longest)
    files.close()
    verdicts: dict[str, TextVerdict] = {}
    for golden in prompts:
        ids = np.array(golden.forced_ids)
        (hidden,) = all_hidden(
            loaded.model,
            [(ids, np.arange(len(ids)))],
            block_size=_TEXT_BLOCK_SIZE,
            kv_dtype=kv_dtype,
        )
        logits = loaded.model.compute_logits(hidden[-len(golden.token_ids) :])
        verdict = verdicts.get(golden.oracle, NOTHING_JUDGED)
        verdicts[golden.oracle] = verdict + judge(golden, logits)
    return verdicts


def text_engine(path: Path, backend: str) -> LLM:
    """Return an engine without int8 activations, with room for the prompts of the text goldens."""
    config = EngineConfig(
        model=str(path),
        max_model_len=1024,
        cache=CacheConfig(num_blocks=MIN_TEXT_PROMPTS * 64),
        device=DeviceConfig(backend=backend, dtype="f32", act="none"),
    )
    return LLM.from_engine(build_engine(config))


def free_differences(llm: LLM, goldens: Iterable[TextGolden]) -> list[str]:
    """Return the prompts whose greedy text, all run in one batch, is not the oracle's."""
    prompts = list(goldens)
    params = [SamplingParams(temperature=0, max_tokens=len(g.token_ids)) for g in prompts]
    outputs = llm.generate([list(g.prompt_ids) for g in prompts], params)
    return [
        golden.prompt_id
        for golden, output in zip(prompts, outputs, strict=True)
        if tuple(output.outputs[0].token_ids) != golden.token_ids
    ]


def unequal_prompt_ids(llm: LLM, goldens: Iterable[TextGolden], texts: dict[str, str]) -> list[str]:
    """Return the prompts that our tokenizer cuts otherwise than the oracle's."""
    return [
        golden.prompt_id
        for golden in goldens
        if tuple(llm.tokenizer.encode(texts[golden.prompt_id], add_special_tokens=False))
        != golden.prompt_ids
    ]


def read_prompts(goldens: Path) -> dict[str, str]:
    """Return the texts of the 24 prompts by id; they lie beside the folder of goldens."""
    prompts = json.loads((goldens.parent / "prompts" / "text24.json").read_text())
    return {prompt["id"]: prompt["text"] for prompt in prompts}


def _run_text(run: Run) -> Section:
    path = run.model or hub.locate(TEXT_MODEL)
    if path is None:
        run.print(f"text: NOT_RUN_ARTIFACT, run `pyvt pull {TEXT_MODEL}` first")
        return Section(label="NOT_RUN_ARTIFACT")
    goldens = list(read_text_goldens(run.goldens, path.stem.lower()))
    by_oracle = {o: [g for g in goldens if g.oracle == o] for o in POLICIES}
    is_good = all(len(prompts) >= MIN_TEXT_PROMPTS for prompts in by_oracle.values())
    figures = []
    acts = ("none",) if run.backend == REFERENCE_BACKEND else ("none", "q8")
    for act in acts:
        for oracle, verdict in forced_verdicts(path, goldens, act).items():
            problems = verdict.problems(
                POLICIES[oracle] if act == "none" else POLICIES["llama.cpp"]
            )
            figures.append(f"act={act}: {verdict} from {oracle}")
            count = len(by_oracle[oracle])
            run.print(f"text, {count} prompts: {', '.join([figures[-1], *problems])}")
            is_good &= not problems
    llm = text_engine(path, run.backend)
    exact = by_oracle["transformers"]
    parted = free_differences(llm, exact)
    cut = unequal_prompt_ids(llm, by_oracle["llama.cpp"], read_prompts(run.goldens))
    figures.append(
        f"free-running text equals transformers on {len(exact) - len(parted)} of {len(exact)}"
    )
    run.print(f"text: {figures[-1]}")
    run.print(f"text: prompt ids equal llama.cpp's on {len(exact) - len(cut)} of {len(exact)}")
    is_good &= len(parted) <= MAX_FREE_DIFFERENCES and not cut
    return Section(label=_label(is_good), figure="; ".join(figures))


def _run_real(run: Run) -> Section:
    labels = {
        run_real_model(row, run.real, run.goldens, run.backend, run.print) for row in REAL_MODELS
    }
    if "FAIL" in labels:
        return Section(label="FAIL")
    return Section(label=labels.pop() if len(labels) == 1 else "PASS")


def _run_lockstep(run: Run) -> Section:
    """Hold a native backend to the reference through a whole model; see ``lockstep``."""
    if run.backend == REFERENCE_BACKEND:
        run.print("lockstep: the reference is what others are held to")
        return Section(label="PASS")
    path = run.model or hub.locate(TEXT_MODEL)
    if path is None:
        run.print(f"lockstep: NOT_RUN_ARTIFACT, run `pyvt pull {TEXT_MODEL}` first")
        return Section(label="NOT_RUN_ARTIFACT")
    goldens = read_text_goldens(run.goldens, path.stem.lower())
    prompts = [golden.forced_ids for golden in goldens if golden.oracle == "transformers"]
    result = run_lockstep(path, prompts, run.backend, print=run.print)
    return Section(label=_label(result.is_good), figure=result.figure)


SECTIONS: dict[str, Callable[[Run], Section]] = {
    "ops": _run_ops,
    "models": _run_models,
    "lockstep": _run_lockstep,
    "text": _run_text,
    "real": _run_real,
}


def run_parity(
    goldens: Path,
    *,
    model: Path | None = None,
    real: Path | None = None,
    backend: str = "numpy",
    only: str | None = None,
    record: Path | None = None,
    print: Print,
) -> int:
    """Run the sections and return the exit code: 0 where all is within its bounds, else 1.

    Args:
        goldens: folder of goldens, ``parity/goldens`` of a checkout.
        model: the file of the text goldens; None takes the pulled one.
        real: folder with real checkpoints, one subfolder each.
        backend: the host backend that computes.
        only: name of one section; None runs all.
        record: file that the results are written to, as JSON; what it holds of sections that do
            not run stays.
        print: takes each line.

    Raises:
        ConfigError: ``only`` is no section, or the backend is not loaded.
        CheckpointError: the folder of goldens is missing or damaged.
    """
    if only is not None and only not in SECTIONS:
        hint = did_you_mean(only, SECTIONS)
        raise ConfigError(f"[parity] only: {only!r} is unknown; {hint}", field="only")
    backends.load(backend)
    use_backend(backend)
    run = Run(goldens=goldens, model=model, real=real, backend=backend, print=print)
    chosen = [only] if only else list(SECTIONS)
    sections = {name: SECTIONS[name](run) for name in chosen}
    if record is not None:
        kept = json.loads(record.read_text())["sections"] if record.exists() else {}
        found = {**kept, **{name: asdict(section) for name, section in sections.items()}}
        content = {"backend": backend, "sections": {k: found[k] for k in SECTIONS if k in found}}
        record.write_text(json.dumps(content, indent=1) + "\n")
    failed = [name for name, section in sections.items() if section.label == "FAIL"]
    print(f"parity: {'FAIL ' + ', '.join(failed) if failed else 'PASS'}")
    return 1 if failed else 0


DUMPERS = {
    "ops": "dump_ops.py",
    "models": "dump_model.py",
    "text": "dump_text.py",
    "tokenizer": "dump_tokenizer.py",
    "trace": "dump_trace.py",
}


def dump_parity(python: str, what: tuple[str, ...], *, print: Print) -> int:
    """Run the dumpers of this checkout with another Python, one that has the oracles.

    Args:
        python: path of the interpreter.
        what: a dumper's name, a key of ``DUMPERS``, and its arguments; none runs ``ops`` and
            ``models``, which need no argument.
        print: takes each line.

    Raises ConfigError outside a checkout, for an unknown dumper and for a Python that is not there.
    """
    name, *arguments = what or ("ops",)
    if name not in DUMPERS:
        raise ConfigError(f"[parity] dump: {name!r} is unknown; {did_you_mean(name, DUMPERS)}")
    folder = Path("parity")
    if not (folder / DUMPERS[name]).is_file():
        raise ConfigError("[parity] dump: expected to run at the root of a checkout")
    commands = [[DUMPERS[name], *arguments]] if what else [[DUMPERS[n]] for n in ("ops", "models")]
    for script, *rest in commands:
        command = [python, str(folder / script), *rest]
        print(" ".join(command))
        try:
            done = subprocess.run(command, env={**os.environ, "PYTHONPATH": "."}, check=False)
        except OSError as error:
            raise ConfigError(
                f"[parity] python: expected a Python with the oracle's packages, got {python!r}: "
                f"{error.strerror}",
                field="python",
            ) from error
        if done.returncode:
            return 1
    return 0
