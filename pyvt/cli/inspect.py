"""``pyvt inspect``: what a model file holds, without loading it."""

import json
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pyvt import dispatch
from pyvt.cli import op_report
from pyvt.cli.model_path import model_path
from pyvt.cli.model_report import ModelReport
from pyvt.cli.terminal import safe_text
from pyvt.config.model import ModelConfig
from pyvt.errors import CheckpointError
from pyvt.llm import LLM
from pyvt.models.registry import check_model
from pyvt.sampling_params import SamplingParams
from pyvt.weights.resolve import ModelFiles, open_model
from pyvt.weights.verify import verify_model

WIDTH_OF_A_FILE = 120
MAX_FINDINGS = 50
OPS_PROMPT = "The capital of France is"
OPS_TOKENS = 4


@click.command(context_settings={"max_content_width": 100})
@click.argument("path", required=False)
@click.option("--tensors", "has_tensors", is_flag=True, help="list every tensor")
@click.option(
    "--verify",
    "is_verify",
    is_flag=True,
    help="check every tensor: name, shape, values that are NaN or infinite",
)
@click.option(
    "--ops",
    "is_ops",
    is_flag=True,
    help="the kernel that serves each op; with PATH, also how often a short run uses the reference",
)
@click.option(
    "--template", "has_template", is_flag=True, help="show the source of the chat templates"
)
@click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else")
def inspect(
    path: str | None,
    has_tensors: bool,
    is_verify: bool,
    is_ops: bool,
    has_template: bool,
    is_json: bool,
) -> int:
    """Show architecture, sizes, element types, RoPE, tokenizer and memory of the model at PATH.

    PATH is a folder, a .gguf file or a name, which is pulled where it is not on this machine. Only
    headers are read, but for --verify, and for --ops with PATH. A model that pyvt cannot run, and a
    file that is damaged or points outside its folder, end with exit code 2.
    """
    if path is None and not is_ops:
        raise click.UsageError("expected PATH or --ops")
    facts: dict[str, Any] = {}
    findings: list[str] = []
    if path is not None:
        files = open_model(model_path(path))
        try:
            report = ModelReport.of(files)
            facts |= report.as_dict()
            if has_tensors:
                facts["tensors"] = report.tensors()
            if is_verify:
                findings = facts["findings"] = _findings(files, report.config)
        finally:
            files.close()
    if is_ops:
        facts["ops"] = op_report.op_rows()
        if path is not None:
            facts["reference_calls"] = _reference_calls(path)
    if is_json:
        click.echo(json.dumps(facts, ensure_ascii=False))
    else:
        _show(facts, has_template)
    if findings:
        raise CheckpointError(f"[verify] {path}: {len(findings)} faults; first: {findings[0]}")
    return 0


def _findings(files: ModelFiles, config: ModelConfig) -> list[str]:
    """Return what is wrong: tensors that the config does not ask for, then values."""
    findings = []
    try:
        check_model(files, config)
    except CheckpointError as error:
        findings.append(str(error))
    return findings + [str(finding) for finding in islice(verify_model(files), MAX_FINDINGS)]


def _reference_calls(path: str) -> dict[str, int]:
    """Return how often each op ran on the reference in a short run of the model."""
    before = dispatch.reference_call_counts()
    params = SamplingParams(max_tokens=OPS_TOKENS, temperature=0.0, ignore_eos=True)
    LLM(str(model_path(path))).generate(OPS_PROMPT, params)
    after = dispatch.reference_call_counts()
    counts = {name: count - before.get(name, 0) for name, count in after.items()}
    return {name: count for name, count in counts.items() if count}


def _show(facts: dict[str, Any], has_template: bool) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = WIDTH_OF_A_FILE
    with console.capture() as capture:
        _draw(console, facts, has_template)
    click.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _draw(console: Console, facts: dict[str, Any], has_template: bool) -> None:
    if "path" in facts:
        _show_model(console, facts)
        _show_chat(console, facts, has_template)
    if "tensors" in facts:
        rows = [
            [t["name"], t["dtype"], _dims(t["shape"]), _size(t["bytes"])] for t in facts["tensors"]
        ]
        _show_table(console, ("tensor", "dtype", "shape", "bytes"), rows)
    if "ops" in facts:
        _show_ops(console, facts)
    if "findings" in facts:
        lines = facts["findings"] or ["sound: every tensor has its place and finite values"]
        _show_table(console, ("verify",), [[line] for line in lines])


def _show_model(console: Console, facts: dict[str, Any]) -> None:
    _show_table(console, ("", ""), list(_summary(facts).items()), is_headed=False)
    rows = [
        [
            row["dtype"],
            f"{row['bits_per_weight']:g}",
            f"{row['tensors']}",
            f"{row['parameters']:,}",
            _size(row["bytes"]),
        ]
        for row in facts["quantization"]
    ]
    _show_table(console, ("dtype", "bits", "tensors", "parameters", "bytes"), rows)


def _show_chat(console: Console, facts: dict[str, Any], has_template: bool) -> None:
    """Show what a chat becomes, and the source of the templates where it was asked for."""
    templates, preview = facts["chat_templates"], facts["chat_preview"]
    if preview is None:
        _show_text(console, "chat template", "none")
        return
    text = preview["error"] if "error" in preview else preview["text"]
    _show_text(console, "a chat, as the template writes it", text)
    for name, source in templates.items() if has_template else ():
        _show_text(console, f"chat template {name!r}, {len(source):,} characters", source)


def _show_text(console: Console, title: str, text: str) -> None:
    console.print(Text(safe_text(title), style="bold"))
    console.print(Text(safe_text(text).rstrip("\n")), soft_wrap=True)
    console.print()


def _summary(facts: dict[str, Any]) -> dict[str, str]:
    """Return the lines of the head: what is shown, and its value as text."""
    sizes, memory, tokenizer = facts["config"], facts["memory"], facts["tokenizer"]
    rope, moe, linear = facts["rope"], facts["moe"], facts["linear_attention"]
    kv_bytes = memory["kv_bytes_per_1k_tokens"]
    return {
        "model": facts["path"],
        "architecture": f"{facts['architecture']} ({facts['format']})",
        "parameters": f"{facts['parameters']:,}"
        + (f", {moe['active_parameters']:,} for a token" if moe else ""),
        "layers": f"{sizes['num_layers']}, hidden {sizes['hidden_size']}, "
        f"intermediate {sizes['intermediate_size']}",
        **({"experts": _experts_line(moe)} if moe else {}),
        **(_linear_lines(linear) if linear else {}),
        "heads": f"{sizes['num_heads']} query, {sizes['num_kv_heads']} KV, "
        f"of {sizes['head_dim']} dims",
        "vocabulary": f"{sizes['vocab_size']:,}"
        + (", embedding tied to output" if sizes["tie_word_embeddings"] else ""),
        "rope": f"{rope['rope_type']}, theta {rope['theta']:g}, {rope['rotary_dim']} dims"
        + (f", factor {rope['factor']:g}" if rope["factor"] != 1 else ""),
        "context": f"{facts['context']:,} tokens"
        + "".join(f", {n} layers see {int(w):,}" for w, n in facts["sliding_windows"].items()),
        "tokenizer": _tokenizer_line(tokenizer),
        "end of text": ", ".join(str(i) for i in facts["eos_token_ids"]) or "none",
        "weights": f"{_size(memory['weights_bytes'])} as stored, "
        f"{_size(memory['weights_f32_bytes'])} as f32",
        "KV per 1k tokens": ", ".join(f"{_size(n)} in {name}" for name, n in kv_bytes.items()),
    }


def _linear_lines(linear: dict[str, Any]) -> dict[str, str]:
    lines = {
        "linear": f"{linear['num_layers']} layers, {linear['num_key_heads']} key heads of "
        f"{linear['key_head_dim']} dims, {linear['num_value_heads']} value heads of "
        f"{linear['value_head_dim']}; {_size(linear['bytes_per_state'])} a request"
    }
    if linear["num_mtp_layers"]:
        lines["draft head"] = f"{linear['num_mtp_layers']} layer"
    return lines


def _experts_line(moe: dict[str, Any]) -> str:
    shared = moe["shared_expert_intermediate_size"]
    return (
        f"{moe['num_experts']} in each of {moe['num_sparse_layers']} layers, "
        f"{moe['num_experts_per_tok']} for a token, intermediate {moe['moe_intermediate_size']}"
        + (f"; one more for all, intermediate {shared}" if shared else "")
    )


def _tokenizer_line(facts: dict[str, Any] | None) -> str:
    if facts is None:
        return "none"
    specials = ", ".join(f"{name} {text!r}" for name, text in facts["specials"].items())
    return f"{facts['kind']}, {facts['vocab_size']:,} tokens" + (
        f"; {specials}" if specials else ""
    )


def _show_ops(console: Console, facts: dict[str, Any]) -> None:
    dtypes = sorted({row["dtype"] for row in facts["ops"]})
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for row in facts["ops"]:
        for backend, kernel in row["kernels"].items():
            cells.setdefault((row["op"], backend), {})[row["dtype"]] = kernel
    rows = [
        [op, backend, *(chosen.get(dtype, "-") for dtype in dtypes)]
        for (op, backend), chosen in cells.items()
    ]
    _show_table(console, ("op", "backend", *(f"kernel for {dtype}" for dtype in dtypes)), rows)
    calls = facts.get("reference_calls")
    if calls is not None:
        counts = [[name, f"{count:,}"] for name, count in calls.items()] or [["none", "0"]]
        _show_table(console, ("op on the reference", "calls"), counts)


def _show_table(
    console: Console,
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    is_headed: bool = True,
) -> None:
    table = Table(box=None, show_header=is_headed, pad_edge=False, header_style="bold")
    for head in heads:
        table.add_column(head, overflow="fold")
    for row in rows:
        table.add_row(*(Text(safe_text(cell)) for cell in row))
    console.print(table)
    console.print()


def _dims(shape: Sequence[int]) -> str:
    return " × ".join(str(size) for size in shape) or "scalar"


def _size(size_bytes: int) -> str:
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= step:
            return f"{size_bytes / step:.4g} {unit}"
    return f"{size_bytes} B"
