"""Released checkpoints that a checkout cannot bring: prepared rows for whoever has them.

A row names the repository, the revision and what is compared. The golden is made on a machine that
has the checkpoint, ``parity/dump_text.py transformers FOLDER``, and judged like any text golden.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyvt.config import DeviceConfig, EngineConfig
from pyvt.engine.build import build_engine
from pyvt.llm import LLM
from pyvt.sampling_params import SamplingParams
from pyvt.testing.text_parity import read_text_goldens


@dataclass(frozen=True, slots=True, kw_only=True)
class RealModel:
    """One released checkpoint: greedy tokens in a dtype against transformers."""

    repository: str
    revision: str
    dtype: str
    num_tokens: int

    @property
    def folder_name(self) -> str:
        """Name of the checkpoint's folder below ``--real``, and of its goldens."""
        return self.repository.rpartition("/")[2].lower()


REAL_MODELS = (
    RealModel(
        repository="Qwen/Qwen3-0.6B",
        revision="c1899de289a04d12100db370d81485cdf75e47ca",
        dtype="f32",
        num_tokens=32,
    ),
    RealModel(
        repository="Qwen/Qwen3.6-35B-A3B",
        revision="main",
        dtype="bf16",
        num_tokens=32,
    ),
)


def run_real_model(
    row: RealModel, real: Path | None, goldens: Path, backend: str, print: Callable[[str], None]
) -> str:
    """Judge one row by its golden below ``goldens``, print its line and return its label."""
    path = None if real is None else _folder_of(row, real)
    if path is None:
        where = "no --real folder" if real is None else f"not below {real}"
        print(f"real {row.repository}@{row.revision[:12]}: NOT_RUN_ARTIFACT, {where}")
        return "NOT_RUN_ARTIFACT"
    if not (goldens / "text" / row.folder_name).is_dir():
        print(
            f"real {row.repository}: NOT_RUN_ARTIFACT, no golden; write it with "
            f"`python parity/dump_text.py transformers {path}`"
        )
        return "NOT_RUN_ARTIFACT"
    config = EngineConfig(
        model=str(path), device=DeviceConfig(backend=backend, dtype=row.dtype), max_model_len=2048
    )
    llm = LLM.from_engine(build_engine(config))
    texts = list(read_text_goldens(goldens, row.folder_name))
    params = SamplingParams(temperature=0, max_tokens=row.num_tokens)
    outputs = llm.generate([list(text.prompt_ids) for text in texts], params)
    equal = [
        tuple(output.outputs[0].token_ids) == text.token_ids[: row.num_tokens]
        for text, output in zip(texts, outputs, strict=True)
    ]
    print(f"real {row.repository}: {sum(equal)} of {len(equal)} prompts equal")
    return "PASS" if all(equal) else "FAIL"


def _folder_of(row: RealModel, real: Path) -> Path | None:
    """Return the checkpoint: a subfolder of that name in any case, or ``real`` itself."""
    for path in (real, *(p for p in sorted(real.iterdir()) if p.is_dir())):
        if path.name.lower() == row.folder_name:
            return path
    return None
