"""``pyvt fit``: what a model would take of the memory, from the headers of its files alone."""

import json
from typing import Any

import click

from pyvt.cli.args import field_options, given
from pyvt.cli.model_path import model_path
from pyvt.config import CacheConfig, DeviceConfig, EngineConfig, SchedulerConfig, engine_config
from pyvt.engine.memory_plan import Plan, plan
from pyvt.weights.resolve import open_model

ENGINE_FIELDS = ("max_model_len",)
CACHE_FIELDS = (
    "kv_cache_dtype",
    "block_size",
    "num_blocks",
    "num_state_slots",
    "memory_fraction",
    "gpu_memory_utilization",
)
SCHEDULER_FIELDS = ("max_num_seqs", "max_num_batched_tokens", "max_prefill_chunk")
DEVICE_FIELDS = ("backend", "dtype", "expand", "act", "experts")
_MIB = 1 << 20


@click.command(context_settings={"max_content_width": 100})
@click.argument("model")
@click.option(
    "--free-mib",
    type=click.IntRange(min=0),
    help="memory to plan for  [default: what the system and the control group leave]",
)
@field_options(EngineConfig, ENGINE_FIELDS)
@field_options(CacheConfig, CACHE_FIELDS)
@field_options(SchedulerConfig, SCHEDULER_FIELDS)
@field_options(DeviceConfig, DEVICE_FIELDS)
@click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else")
def fit(model: str, free_mib: int | None, is_json: bool, **options: Any) -> int:
    """Show the memory plan of MODEL: weights, KV, activations, and what is left.

    MODEL is a folder, a .gguf file or a name, which is pulled where it is not on this machine.
    Nothing is loaded. A model that does not fit ends with exit code 2 and says by how much, and
    what to do.
    """
    names = (*ENGINE_FIELDS, *CACHE_FIELDS, *SCHEDULER_FIELDS, *DEVICE_FIELDS)
    path = model_path(model)
    files = open_model(path)
    try:
        free_bytes = None if free_mib is None else free_mib * _MIB
        made = plan(engine_config(str(path), **given(options, names)), files, free_bytes=free_bytes)
    finally:
        files.close()
    click.echo(json.dumps(made.as_dict()) if is_json else _text(made))
    return 0


def _text(made: Plan) -> str:
    facts = made.as_dict()
    rows = [
        ("weights", _mib(made.weight_bytes), made.expand_reason),
        *_in_file(made),
        (
            "KV",
            _mib(made.kv_bytes),
            f"{facts['num_blocks']} blocks of {facts['block_size']} tokens in {facts['kv_dtype']}, "
            f"{facts['kv_bytes_per_token']} bytes a token",
        ),
        *_states(made),
        ("activations", _mib(made.activation_bytes), "of the largest step"),
        ("left", _mib(made.left_bytes), f"of {_mib(made.free_bytes).strip()} free"),
    ]
    lines = [f"{name:<12}{size}  {note}" for name, size, note in rows]
    count = facts["num_full_requests"]
    requests = "1 request" if count == 1 else f"{count} requests"
    verb = "fits" if count == 1 else "fit"
    lines.append(f"{requests} of {facts['max_model_len']} tokens {verb} at once")
    return "\n".join(lines)


def _in_file(made: Plan) -> list[tuple[str, str, str]]:
    """Return the row of a model whose experts stay in its file."""
    if not made.file_bytes:
        return []
    note = "of experts, not in memory: read from the file at the speed of the disk"
    return [("in the file", _mib(made.file_bytes), note)]


def _states(made: Plan) -> list[tuple[str, str, str]]:
    """Return the row of a model with linear attention."""
    facts = made.as_dict()
    if not made.state_bytes:
        return []
    note = f"{facts['num_state_slots']} of {facts['bytes_per_state']} bytes, one a request"
    return [("states", _mib(made.state_bytes), f"{note}; the rest for snapshots")]


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / _MIB:>10.1f} MiB"
