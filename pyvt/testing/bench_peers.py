"""``pyvt bench peers``: pyvt, llama.cpp and transformers on the same file, in turn, in one run.

Each engine is a process of its own that answers requests (``bench_engine``); a repetition asks each
of them for each workload, one after the other, so that what the machine does besides meets all
alike. Ratios are taken within a repetition; what is told is their median. The rows of ``TARGETS``
say what is wanted.
"""

import hashlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from pyvt.errors import ConfigError
from pyvt.testing.bench_limits import Limits
from pyvt.testing.model_cost import ModelCost

Print = Callable[[str], None]
Ask = dict[str, Any]

PYVT, LLAMA, TRANSFORMERS = "pyvt", "llama.cpp", "transformers"
SCRIPTS = {LLAMA: "peer_llama_cpp.py", TRANSFORMERS: "peer_transformers.py"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One request to an engine, and how a rate is made of its answer.

    Attributes:
        ask: the request.
        num_tokens: tokens of a step.
        num_logits: rows of logits of a step.
        key: the answer's field: a list of seconds a step, or one number.
        is_read_bound: whether memory or arithmetic is the limit.
    """

    ask: Ask
    num_tokens: int
    num_logits: int = 1
    key: str = "seconds"
    is_read_bound: bool = False

    def seconds(self, answer: dict[str, Any]) -> float:
        """Return the seconds of a step: the median of those in the answer."""
        value = answer[self.key]
        return float(statistics.median(value) if isinstance(value, list) else value)


_DECODE_128 = {"do": "decode", "context": 128, "steps": 16}
_DECODE_512 = {"do": "decode", "context": 512, "steps": 16}
_BATCH_4 = {"do": "batch", "sequences": 4, "context": 64, "steps": 8}
_BATCH_16 = {"do": "batch", "sequences": 16, "context": 64, "steps": 6}
WORKLOADS = {
    "decode@128": Workload(ask=_DECODE_128, num_tokens=1, is_read_bound=True),
    "decode@512": Workload(ask=_DECODE_512, num_tokens=1, is_read_bound=True),
    "prefill 256": Workload(ask={"do": "prefill", "tokens": 256}, num_tokens=256),
    "prefill 512": Workload(ask=_DECODE_512, num_tokens=512, key="prefill_s"),
    "batch 4": Workload(ask=_BATCH_4, num_tokens=4, num_logits=4),
    "batch 16": Workload(ask=_BATCH_16, num_tokens=16, num_logits=16),
}
BUSY_WORKLOADS = ("decode@128", "prefill 256")
# What llama.cpp keeps of its speed beside one busy neighbour is measured too; this is for pyvt.
BUSY_MUST = 0.45


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is wanted of a workload on a model: a ratio to the best peer, and a share of a limit."""

    model: str
    workload: str
    must: float
    aim: float | None = None
    aim_share: float | None = None


def _targets(model: str, **wanted: tuple[float, float | None, float | None]) -> Iterator[Target]:
    names = {
        "decode_128": "decode@128",
        "decode_512": "decode@512",
        "prefill_256": "prefill 256",
        "prefill_512": "prefill 512",
        "batch_16": "batch 16",
    }
    for key, (must, aim, share) in wanted.items():
        yield Target(model=model, workload=names[key], must=must, aim=aim, aim_share=share)


SMOLLM2 = "smollm2-135m"
_QWEN3 = "shape:qwen3-0.6b"
_SMOLLM2_SHAPE = "shape:smollm2-135m"
_QWEN36_MOE = "shape:qwen3.6-35b-a3b-quarter:q4_k_m"
_QWEN3_MOE = "shape:qwen3-30b-a3b-quarter:q4_k_m"
TARGETS = (
    *_targets(
        SMOLLM2,
        decode_128=(1.6, None, None),
        decode_512=(2.2, None, None),
        prefill_256=(3.5, 5.0, 0.6),
        prefill_512=(3.5, 5.0, 0.6),
        batch_16=(2.5, None, 0.6),
    ),
    *_targets(
        f"{_QWEN3}:q8_0",
        decode_128=(1.4, None, 0.9),
        prefill_256=(1.7, 2.2, 0.6),
        prefill_512=(1.7, 2.2, 0.6),
    ),
    *_targets(
        f"{_QWEN3}:q4_k_m",
        decode_128=(1.6, None, 0.9),
        prefill_256=(2.0, 2.7, 0.6),
        prefill_512=(2.0, 2.7, 0.6),
    ),
    *_targets(
        f"{_QWEN3}:bf16",
        decode_128=(1.25, None, 0.9),
        prefill_256=(1.3, None, 0.85),
    ),
    *_targets(f"{_QWEN3}:f32", prefill_256=(1.3, None, 0.85)),
    *_targets(f"{_SMOLLM2_SHAPE}:q8_0", batch_16=(1.6, None, 0.6)),
    *_targets(f"{_SMOLLM2_SHAPE}:q4_k_m", batch_16=(1.6, None, 0.6)),
    *_targets(f"{_SMOLLM2_SHAPE}:bf16", batch_16=(1.1, None, 0.6)),
    *_targets(_QWEN36_MOE, decode_128=(1.5, None, None), prefill_256=(2.0, None, None)),
    *_targets(_QWEN3_MOE, decode_128=(1.5, None, None), prefill_256=(2.0, None, None)),
)
MODELS = tuple(dict.fromkeys(target.model for target in TARGETS))


class Peer:
    """An engine in a process of its own; ``errors`` takes its stderr."""

    def __init__(self, name: str, command: Sequence[str], errors: IO[str]) -> None:
        self.name = name
        self._errors = errors
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
            )
        except OSError as error:
            raise ConfigError(
                f"[bench] {name}: expected a program that runs, got {command[0]}: {error.strerror}"
            ) from error
        self.ready = self._read()

    def ask(self, request: Ask) -> dict[str, Any]:
        """Return the answer to a request."""
        _of(self._process.stdin).write(json.dumps(request) + "\n")
        _of(self._process.stdin).flush()
        return self._read()

    def close(self) -> int:
        """End the process and return its exit code."""
        _of(self._process.stdin).close()
        code = self._process.wait()
        _of(self._process.stdout).close()
        return code

    def _read(self) -> dict[str, Any]:
        line = _of(self._process.stdout).readline()
        if not line:
            code = self.close()
            self._errors.seek(0)
            last = (self._errors.read().splitlines() or ["no output"])[-1]
            raise ConfigError(
                f"[bench] {self.name}: expected an answer, got exit code {code}: {last}"
            )
        answer: dict[str, Any] = json.loads(line)
        return answer


def _of(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None, "both pipes were asked for"
    return pipe


@dataclass(slots=True, kw_only=True)
class Samples:
    """What the repetitions of one model gave.

    Attributes:
        names: what each engine calls itself.
        dtype: that of pyvt's activations.
        seconds: of a step, by engine and workload, one a repetition.
        busy: the same beside a busy neighbour.
        limits: one a repetition; empty without the native backend.
        resident_bytes: by engine, after all workloads.
        kernels: what served pyvt's ops.
    """

    names: dict[str, str] = field(default_factory=dict)
    dtype: str = "f32"
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    busy: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    limits: list[Limits] = field(default_factory=list)
    resident_bytes: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)

    def latest(self) -> str:
        """Return the tokens/s of the last repetition in words."""
        return "; ".join(
            f"{engine} "
            + ", ".join(f"{w} {WORKLOADS[w].num_tokens / s[-1]:.1f}" for w, s in found.items())
            for engine, found in self.seconds.items()
        )

    def ratios(self, workload: str) -> list[float]:
        """Return pyvt's speed over the best peer's, by repetition; none without peers."""
        ours = self.seconds[PYVT][workload]
        peers = [s[workload] for name, s in self.seconds.items() if name != PYVT]
        return [min(times) / mine for mine, *times in zip(ours, *peers, strict=True) if times]


@contextmanager
def busy_neighbour() -> Iterator[None]:
    """Keep one core of this process's set busy until the block ends."""
    code = (
        "import os\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "print(flush=True)\n"
        "while True:\n    pass"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None, "the pipe was asked for"
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def commands(
    path: Path,
    *,
    threads: int,
    scripts: Path,
    llama_python: str | None = None,
    hf_python: str | None = None,
    hf_path: Path | None = None,
    hf_dtype: str = "f32",
) -> dict[str, list[str]]:
    """Return the command of each engine: pyvt, and the peers whose Python is given."""
    count = ["--threads", str(threads)]
    found = {PYVT: [sys.executable, "-m", "pyvt.testing.bench_engine", str(path), *count]}
    if llama_python is not None:
        found[LLAMA] = [llama_python, str(scripts / SCRIPTS[LLAMA]), str(path), *count]
    if hf_python is not None and hf_path is not None:
        script = str(scripts / SCRIPTS[TRANSFORMERS])
        found[TRANSFORMERS] = [hf_python, script, str(hf_path), *count, "--dtype", hf_dtype]
    return found


def measure(
    engines: dict[str, list[str]],
    workloads: Sequence[str],
    *,
    repeats: int,
    is_busy_measured: bool = True,
    report: Print,
) -> Samples:
    """Run the workloads on all engines in turn and return what was measured.

    Args:
        engines: command of each engine by name, pyvt's first.
        workloads: keys of ``WORKLOADS``.
        repeats: repetitions after one that is not counted.
        is_busy_measured: whether to repeat some beside a busy neighbour.
        report: takes a line after each repetition.

    Raises ConfigError where an engine does not answer.
    """
    samples = Samples()
    busy = [name for name in BUSY_WORKLOADS if name in workloads and is_busy_measured]
    with ExitStack() as stack:
        peers = {}
        for name, command in engines.items():
            errors = stack.enter_context(TemporaryFile("w+"))
            peers[name] = Peer(name, command, errors)
            stack.callback(peers[name].close)
        samples.names = {name: peer.ready["name"] for name, peer in peers.items()}
        samples.dtype = peers[PYVT].ready["dtype"]
        report(f"{', '.join(samples.names.values())}: loaded")
        _repeat(peers, workloads, {})
        for i in range(repeats):
            rates = peers[PYVT].ask({"do": "limits"})
            samples.limits += [Limits(**rates)] if rates else []
            _repeat(peers, workloads, samples.seconds)
            report(f"repetition {i + 1} of {repeats}: {samples.latest()}")
        for name, peer in peers.items():
            samples.resident_bytes[name] = peer.ask({"do": "memory"})["resident_bytes"]
        samples.kernels = peers[PYVT].ask({"do": "kernels"})["kernels"]
        if busy:
            with busy_neighbour():
                for _ in range(repeats):
                    _repeat(peers, busy, samples.busy)
    return samples


def _repeat(
    peers: dict[str, Peer], workloads: Sequence[str], seconds: dict[str, dict[str, list[float]]]
) -> None:
    """Ask each engine for each workload once; workloads of one request share its answer."""
    asks: dict[str, list[str]] = {}
    for name in workloads:
        asks.setdefault(json.dumps(WORKLOADS[name].ask), []).append(name)
    for ask, names in asks.items():
        for engine, peer in peers.items():
            answer = peer.ask(json.loads(ask))
            for name in names:
                of_engine = seconds.setdefault(engine, {})
                of_engine.setdefault(name, []).append(WORKLOADS[name].seconds(answer))


def share_of_limit(
    workload: Workload,
    cost: ModelCost,
    seconds: Sequence[float],
    limits: Sequence[Limits],
    *,
    is_read: bool | None = None,
) -> float | None:
    """Return the median share of the workload's limit, memory or arithmetic.

    ``is_read`` chooses the limit; None takes the one that bounds the workload. The result is None
    where no limits were measured.
    """
    if not limits:
        return None
    shares = [
        cost.read_share(spent, limit)
        if (workload.is_read_bound if is_read is None else is_read)
        else cost.loop_share(
            spent, limit, num_tokens=workload.num_tokens, num_logits=workload.num_logits
        )
        for spent, limit in zip(seconds, limits, strict=True)
    ]
    return statistics.median(shares)


def file_sha256(path: Path) -> str:
    """Return the identity of a model's file."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
