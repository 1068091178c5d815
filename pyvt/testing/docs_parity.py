"""The pages of measured evidence: ``docs/reference/parity.md`` and ``docs/status.md``.

Both are made from records that are committed: ``parity/measured/<backend>.json``, written by
``pyvt parity run --record``, and ``benchmarks/results/<name>.json``, written by the benchmarks.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyvt.dispatch.table import REFERENCE_BACKEND
from pyvt.testing.record import RunRecord

LABELS = ("PASS", "SIMULATED", "NOT_RUN_HARDWARE", "NOT_RUN_ARTIFACT", "NOT_CLAIMED")
LABELS_THAT_RAN = ("PASS", "SIMULATED")


def measured(root: Path) -> dict[str, Any]:
    """Return the recorded parity runs by backend."""
    paths = sorted((root / "parity" / "measured").glob("*.json"))
    return {path.stem: json.loads(path.read_text()) for path in paths}


def parity_rows(root: Path) -> list[tuple[str, ...]]:
    """Return the table op × backend × dtype: goldens, largest error, share of its bound."""
    return [
        (
            f"`{row['op']}`",
            backend,
            row["dtype"],
            str(row["num_goldens"]),
            f"{row['max_error']:.1e}",
            f"{row['share_of_bound']:.2f}",
        )
        for backend, record in measured(root).items()
        for row in record["sections"]["ops"]["op_rows"]
    ]


def parity_sections(root: Path) -> list[tuple[str, ...]]:
    """Return the table section × backend: label and figure."""
    return [
        (name, backend, section["label"], section["figure"] or "–")
        for backend, record in measured(root).items()
        for name, section in record["sections"].items()
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One row of the status page.

    Attributes:
        name: what pyvt can do.
        command: the command that shows it.
        label: one of ``LABELS``, or a function that takes it from a record.
        figure: takes what was measured from a record; None where the command's exit code says all.
    """

    name: str
    command: str
    label: str | Callable[[Path], str]
    figure: Callable[[Path], str] | None = None

    def label_in(self, root: Path) -> str:
        """Return the label in this checkout."""
        return self.label if isinstance(self.label, str) else self.label(root)

    def figure_in(self, root: Path) -> str:
        """Return the figure in this checkout, empty where there is none."""
        return self.figure(root) if self.figure is not None else ""


def _parity(section: str, backend: str = REFERENCE_BACKEND) -> dict[str, Any]:
    def entry(root: Path) -> dict[str, Any]:
        found: dict[str, Any] = measured(root)[backend]["sections"][section]
        return found

    return {
        "command": f"pyvt parity run --backend {backend} --only {section}",
        "label": lambda root: entry(root)["label"],
        "figure": lambda root: entry(root)["figure"],
    }


def _plain(value: float) -> str:
    """Return a figure with three digits, or all before the point; never as a power of ten."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _speed(name: str) -> Callable[[Path], str]:
    def figure(root: Path) -> str:
        record = RunRecord.from_json((root / f"benchmarks/results/{name}.json").read_text())
        values = ", ".join(f"{f.name} {_plain(f.median)} {f.unit}" for f in record.figures)
        threads = "1 thread" if record.threads == 1 else f"{record.threads} threads"
        return f"{values} ({record.machine.cpu}, {threads})"

    return figure


def _peer_records(root: Path) -> list[RunRecord]:
    paths = sorted((root / "benchmarks" / "results").glob("peers-*.json"))
    return [RunRecord.from_json(path.read_text()) for path in paths]


def _ratios(record: RunRecord) -> str:
    """Return the ratios of one model to the best peer, in words."""
    found = [(f.name.removeprefix("ratio "), f) for f in record.figures if f.unit == "x"]
    return f"{record.model}: " + ", ".join(f"{name} {f.median:.2f}" for name, f in found)


CAPABILITIES = (
    Capability(name="Ops equal other people's code", **_parity("ops")),
    Capability(name="Tiny Llama and Qwen3 models equal transformers", **_parity("models")),
    Capability(name="SmolLM2-135M Q4_1: greedy text", **_parity("text")),
    Capability(
        name="Qwen3-0.6B and Qwen3.6-35B-A3B: greedy text of the released checkpoints",
        command="pyvt parity run --only real --real FOLDER",
        label=lambda root: str(measured(root)["numpy"]["sections"]["real"]["label"]),
    ),
    Capability(
        name="19 GGUF block formats, bit for bit",
        command="pytest tests/ops/test_quant_gguf.py",
        label="PASS",
    ),
    Capability(
        name="Llama and Qwen3 from safetensors and GGUF, single and split",
        command="pytest tests/models tests/weights",
        label="PASS",
    ),
    Capability(
        name="FP8, NVFP4, GPTQ, AWQ and compressed-tensors weights, bit for bit by their formulas, "
        "kept packed; W4A4 and FP8 W8A8 checkpoints weight-only",
        command="pytest tests/weights/quantized",
        label="PASS",
    ),
    Capability(
        name="`pyvt quantize`: Llama, Qwen3, Qwen3-MoE, Qwen3.5/3.6 and Qwen3-Next to GGUF in "
        "eight types; llama.cpp reads the files",
        command="pytest tests/convert",
        label="PASS",
    ),
    Capability(
        name="`pyvt eval`: perplexity and KL divergence equal those of the logits",
        command="pytest tests/evaluation tests/cli/test_eval.py",
        label="PASS",
    ),
    Capability(
        name="Broken model files are refused by name",
        command="pytest tests/weights/test_bad_files.py",
        label="PASS",
    ),
    Capability(
        name="Tokenizers and chat templates equal tokenizers, transformers and llama.cpp",
        command="pytest tests/tokenizer",
        label="PASS",
    ),
    Capability(
        name="Engine: continuous batching, chunked prefill, preemption, abort",
        command="pytest tests/engine tests/scheduler tests/test_llm.py",
        label="PASS",
    ),
    Capability(
        name="Scheduler: budgets, priorities, cache groups, prefix cache, forks, KV connector with "
        "states, bounds of waiting; random traffic",
        command="pytest tests/scheduler",
        label="PASS",
    ),
    Capability(
        name="Answers do not depend on batch, chunks, preemption, prefix cache or KV blocks; KV in "
        "f32, bf16, f16 and fp8",
        command="pytest tests/engine/test_same_tokens.py",
        label="PASS",
    ),
    Capability(
        name="Structured output: schemas, regex, choice, GBNF and Lark grammars, tags",
        command="pytest tests/structured tests/engine/test_structured_outputs.py",
        label="PASS",
    ),
    Capability(
        name="JSON-Schema-Test-Suite, draft 2020-12: no invalid document is let through unsaid",
        command="pytest tests/structured/test_schema_suite.py",
        label="PASS",
    ),
    Capability(
        name="658 tools that people have described (BFCL): no wrong argument is let through",
        command="pytest tests/structured/test_tool_schemas.py",
        label="PASS",
    ),
    Capability(
        name="Speculative decoding by prompt lookup: the same tokens as without",
        command="pytest tests/spec_decode tests/engine/test_speculative.py",
        label="PASS",
    ),
    Capability(
        name="Engine thread and AsyncLLM: one end for every request, cancellation, deadlines, "
        "shutdown; n answers",
        command="pytest tests/engine/test_engine_thread.py tests/engine/test_async_llm.py "
        "tests/engine/test_llm_engine.py",
        label="PASS",
    ),
    Capability(
        name="10,000 requests one after another leave the resident size as it is",
        command="python -m benchmarks.bench_engine --only memory",
        label="PASS",
    ),
    Capability(
        name="`pyvt batch`: a file of requests, resumable",
        command="pytest tests/cli/test_batch.py",
        label="PASS",
    ),
    Capability(
        name="`pyvt bench latency` and `throughput`: closed and open loops, two data sets",
        command="pytest tests/testing/test_serving_load.py tests/cli/test_bench_serving.py",
        label="PASS",
    ),
    Capability(
        name="Command line: generate, chat, inspect, pull, parity",
        command="pytest tests/cli tests/hub",
        label="PASS",
    ),
    Capability(
        name="`pyvt pull` of a Hugging Face repository",
        command="pyvt pull Qwen/Qwen3-0.6B",
        label="NOT_RUN_ARTIFACT",
    ),
    Capability(
        name="Speed of the NumPy reference, SmolLM2-135M Q4_1",
        command="python -m benchmarks.bench_reference",
        label="PASS",
        figure=_speed("reference"),
    ),
    Capability(
        name="Native CPU backend: every kernel equals the reference on scalar, AVX2 and, where the "
        "CPU has it, AVX-512",
        command="pytest tests/backends",
        label="PASS",
    ),
    Capability(
        name="Native CPU backend: AVX-512, NEON and i8mm kernels, over SIMDe on any x86-64",
        command="make simde",
        label="SIMULATED",
    ),
    Capability(
        name="Native CPU backend: NEON and i8mm kernels as AArch64 code, on an emulator: products "
        "and packing of every format have the bits of scalar",
        command="make cross",
        label="SIMULATED",
    ),
    Capability(
        name="Native CPU backend on NEON and i8mm CPUs",
        command="–",
        label="NOT_RUN_HARDWARE",
    ),
    Capability(
        name="Native CPU backend: the thread pool under the thread sanitizer",
        command="make tsan",
        label="PASS",
    ),
    Capability(
        name="C library `libpyvt_ops.so`, called from C and by ctypes",
        command="pytest tests/backends/test_c_api.py",
        label="PASS",
    ),
    Capability(
        name="The sdist, installed without a compiler, answers with NumPy and says so",
        command="pytest tests/test_packages.py -m 'not slow'",
        label="PASS",
    ),
    Capability(
        name="Native CPU backend: SmolLM2-135M in lockstep with the reference",
        **_parity("lockstep", "cpu"),
    ),
    Capability(
        name="Native CPU backend: greedy text, with and without int8 activations",
        **_parity("text", "cpu"),
    ),
    Capability(
        name="Machine check and self-test of every kernel",
        command="pyvt doctor",
        label="PASS",
    ),
    Capability(
        name="Native CPU backend: speed against other engines",
        command="pyvt bench peers",
        label=lambda root: "PASS" if _peer_records(root) else "NOT_CLAIMED",
        figure=lambda root: "; ".join(map(_ratios, _peer_records(root))),
    ),
    Capability(
        name="CUDA backend on its emulator: ops, tiny models, and engines with captured decode "
        "steps, chunks, preemption, prefix cache, drafts, grammars and a KV connector equal the "
        "reference",
        command="make emu",
        label="SIMULATED",
    ),
    Capability(
        name="CUDA backend on its emulator: tiny Qwen3-MoE, Qwen3.5 and Qwen3-Next models, models "
        "in blocks, and hybrid engines with drafts and fp8 KV equal the reference",
        command="pytest tests/backends/cuda/test_device_experts.py",
        label="SIMULATED",
    ),
    Capability(
        name="CUDA backend: builds for sm_80, sm_90 and sm_120 without warnings or spills",
        command="make cuda",
        label="PASS",
    ),
    Capability(name="CUDA backend on a card", command="–", label="NOT_RUN_HARDWARE"),
    Capability(
        name="Qwen3-MoE: tiny models equal transformers and llama.cpp, in every stored form",
        command="pytest tests/models -k moe",
        label="PASS",
    ),
    Capability(
        name="Qwen3-MoE on the native CPU backend: the same bits alone and in any batch",
        command="pytest tests/backends/test_experts.py tests/engine/test_same_tokens.py -k experts",
        label="PASS",
    ),
    Capability(
        name="Qwen3.5/3.6 dense and with experts, Qwen3-Next: tiny models equal transformers and "
        "llama.cpp, from safetensors and GGUF; the draft head equals layers of "
        "transformers and llama.cpp's graph",
        command="pytest tests/models",
        label="PASS",
    ),
    Capability(
        name="Hybrids: every turn of a chat finds the prompt before it but for a block; edits, "
        "branches, aborts",
        command="pytest tests/engine/test_hybrid_chat.py tests/scheduler/test_state_manager.py",
        label="PASS",
    ),
    Capability(
        name="Hybrids: answers do not depend on batch, chunks, preemption or prefix cache, to the "
        "bit on the native backend",
        command="pytest tests/engine/test_same_tokens.py -k hybrid",
        label="PASS",
    ),
    Capability(
        name="Drafts of the model's own head (MTP): the same tokens as without",
        command="pytest tests/engine/test_draft_head.py tests/worker/test_drafter.py",
        label="PASS",
    ),
    Capability(
        name="Released Qwen3.5/3.6 and Qwen3-Next files", command="–", label="NOT_RUN_ARTIFACT"
    ),
    Capability(
        name="Server: chats, completions, responses and messages, whole and streamed, read by the "
        "official OpenAI client; every sampling parameter on every route",
        command="pytest tests/server",
        label="PASS",
    ),
    Capability(
        name="Tool calls of five dialects and reasoning, however the text is cut; forced calls and "
        "schemas by grammar",
        command="pytest tests/server/tool_parsers tests/server/test_structure.py",
        label="PASS",
    ),
    Capability(
        name="Embeddings: `LLM.embed` and over HTTP, of the last token or the mean",
        command="pytest tests/test_llm_embed.py tests/server/openai/test_embeddings.py",
        label="PASS",
    ),
    Capability(
        name="Server: a bound on the reasoning, on every route of chats",
        command="pytest tests/server/test_thinking_budget.py",
        label="PASS",
    ),
    Capability(
        name="Server: an idle model is unloaded and loaded again",
        command="pytest tests/server/test_sleep.py",
        label="PASS",
    ),
    Capability(
        name="Server: every field of every route with wrong values, beside streams that keep their "
        "tokens",
        command="pytest tests/server/test_matrix.py",
        label="PASS",
    ),
    Capability(
        name="Server: openai, openai-node, anthropic, langchain, litellm and curl understand the "
        "same scenarios, on a tiny model and on SmolLM2",
        command="make clients",
        label="PASS",
    ),
    Capability(
        name="Server: requests made by schemathesis of `/openapi.json`, at least 60 % of the valid "
        "ones served on each route",
        command="make clients",
        label="PASS",
    ),
    Capability(
        name="Server: each part of its page, used in Chromium",
        command="make clients",
        label="PASS",
    ),
    Capability(
        name="`pyvt chat --url` and `pyvt bench serve`: servers over HTTP",
        command="pytest tests/cli/test_remote.py tests/cli/test_bench_http.py",
        label="PASS",
    ),
)


def status_rows(root: Path) -> list[tuple[str, ...]]:
    """Return the rows of the status page."""
    return [
        (
            capability.name,
            capability.command if capability.command == "–" else f"`{capability.command}`",
            capability.label_in(root),
            capability.figure_in(root) or "–",
        )
        for capability in CAPABILITIES
    ]
