"""The comparison with peers, over scripted engines: pairing, ratios, records, and a dead peer."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from pyvt.errors import ConfigError
from pyvt.testing.bench_limits import Limits
from pyvt.testing.bench_peers import (
    LLAMA,
    PYVT,
    TARGETS,
    TRANSFORMERS,
    WORKLOADS,
    Samples,
    commands,
    measure,
)
from pyvt.testing.model_cost import ModelCost
from pyvt.testing.peers_report import HEADER, PeersRun
from pyvt.testing.record import RunRecord

SCRIPT = """
import json, sys
step_s, size = float(sys.argv[1]), int(sys.argv[2])
print(json.dumps({"name": f"engine {step_s}", "load_s": 0.1, "dtype": "f32"}), flush=True)
for line in sys.stdin:
    ask = json.loads(line)
    answers = {
        "memory": {"resident_bytes": size, "peak_bytes": size},
        "limits": {"read": 10.0, "loops": {"fma_f32": 100.0}},
        "kernels": {"kernels": {"argmax": "cpu"}},
    }
    answer = answers.get(ask["do"], {"prefill_s": 4 * step_s, "seconds": [9.0, step_s, step_s / 2]})
    print(json.dumps(answer), flush=True)
"""
MODEL = "smollm2-135m"
COST = ModelCost(
    file_bytes=100, step_bytes=10**6, layer_ops=Counter(f32=10**7), head_ops=Counter(f32=10**6)
)


def _engines() -> dict[str, list[str]]:
    start = [sys.executable, "-c", SCRIPT]
    return {PYVT: [*start, "0.01", "50000000"], LLAMA: [*start, "0.02", "100000000"]}


@pytest.fixture(scope="module")
def samples() -> Samples:
    lines: list[str] = []
    workloads = ["decode@128", "decode@512", "prefill 512"]
    found = measure(_engines(), workloads, repeats=2, report=lines.append)
    assert len(lines) == 3
    return found


@pytest.fixture
def run(samples: Samples, tmp_path: Path) -> PeersRun:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return PeersRun(model=MODEL, path=path, cost=COST, threads=2, samples=samples)


def test_ratio_is_of_medians_within_a_repetition(samples: Samples) -> None:
    assert samples.ratios("decode@128") == pytest.approx([2.0, 2.0])
    assert samples.seconds[PYVT]["decode@512"] == [0.01, 0.01]
    assert samples.seconds[PYVT]["prefill 512"] == [0.04, 0.04]
    assert samples.busy[LLAMA]["decode@128"] == [0.02, 0.02]


def test_rows_give_verdicts_on_targets(run: PeersRun) -> None:
    rows = [dict(zip(HEADER, row, strict=True)) for row in run.rows()]

    own = {row["workload"]: row for row in rows if row["engine"] == PYVT}
    assert (own["decode@128"]["ratio"], own["decode@128"]["verdict"]) == ("2.00", "met")
    assert (own["decode@512"]["ratio"], own["decode@512"]["verdict"]) == ("2.00", "missed")
    assert own["decode@128"]["share"] == "1%"
    assert own["resident MB"]["verdict"] == "met"
    assert own["decode@128, busy core"]["ratio"] == "1.00"


def test_record_has_every_figure_and_the_kernels(run: PeersRun, tmp_path: Path) -> None:
    record = RunRecord.from_json(run.record("pyvt bench peers", tmp_path, "f32").to_json())

    medians = {figure.name: figure.median for figure in record.figures}
    assert medians["ratio decode@128"] == pytest.approx(2.0)
    assert medians["llama.cpp decode@128"] == pytest.approx(50.0)
    assert medians["read limit"] == 10.0
    assert record.kernels == {"argmax": "cpu"}
    assert record.features == ("engine 0.01", "engine 0.02")


def test_peer_that_ends_is_an_error_with_its_last_line() -> None:
    dead = [sys.executable, "-c", "raise SystemExit('no such file')"]

    with pytest.raises(ConfigError, match="exit code 1: no such file"):
        measure({PYVT: dead}, ["decode@128"], repeats=1, report=print)


def test_commands_take_part_by_their_python(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    found = commands(
        path, threads=3, scripts=tmp_path, llama_python="L", hf_python="H", hf_path=tmp_path
    )

    assert list(found) == [PYVT, LLAMA, TRANSFORMERS]
    assert found[LLAMA][0] == "L"
    assert found[TRANSFORMERS][-2:] == ["--dtype", "f32"]
    assert list(commands(path, threads=1, scripts=tmp_path)) == [PYVT]


def test_targets_are_of_known_workloads() -> None:
    assert {target.workload for target in TARGETS} <= WORKLOADS.keys()


def test_limits_know_the_loop_of_a_format() -> None:
    limits = Limits(read=1.0, loops={"int4": 5.0, "int8": 3.0})

    assert [limits.of_format(name) for name in ("q4_k", "iq3_s")] == [5.0, 3.0]


def test_limits_know_the_loop_of_bf16_by_the_dtype_of_activations() -> None:
    limits = Limits(read=1.0, loops={"fma_f32": 2.0, "bf16": 4.0})

    assert [limits.of_format("bf16", dtype) for dtype in ("f32", "bf16")] == [2.0, 4.0]
    assert limits.of_format("f32", "bf16") == 2.0


def test_engine_without_its_python_is_refused_by_name() -> None:
    engines = {PYVT: ["/nowhere/python", "-c", "pass"]}

    with pytest.raises(ConfigError, match="got /nowhere/python: No such file"):
        measure(engines, ["decode@128"], repeats=1, report=lambda line: None)
