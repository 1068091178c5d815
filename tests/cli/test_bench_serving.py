"""``pyvt bench latency`` and ``pyvt bench throughput`` over a fake engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from pyvt.testing.record import RunRecord
from pyvt.testing.serving_load import METRICS
from tests.cli.conftest import RunCommand

SMALL = ("--num-prompts", "4", "--input-len", "8", "--output-len", "6")


@pytest.mark.parametrize(
    "args",
    [
        ("latency",),
        ("latency", "--concurrency", "3", "--dataset", "shared-prefix", "--prefix-len", "4"),
        ("throughput",),
        ("throughput", "--request-rate", "500", "--arrival", "fixed"),
        ("throughput", "--request-rate", "500", "--arrival", "poisson"),
        ("throughput", "--concurrency", "2"),
    ],
)
def test_bench_serving_prints_every_figure_by_its_name(
    args: tuple[str, ...], run_command: RunCommand, use_engine: Any, model: str, tmp_path: Path
) -> None:
    use_engine()

    result = run_command("bench", *args, "-m", model, *SMALL, "--out", str(tmp_path / "out"))

    assert result.code == 0
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "figure",
        *[f"{kind}_{m}_ms" for m in METRICS for kind in ("mean", "median", "p99")],
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
        "completed",
        "failed",
    ]  # fmt: skip
    record = RunRecord.from_json((tmp_path / "out" / f"{args[0]}.json").read_text())
    assert (record.prompt_tokens, record.new_tokens) == (8, 6)
    assert {figure.name: figure.n for figure in record.figures}["mean_ttft_ms"] == 4


def test_bench_latency_as_json(run_command: RunCommand, use_engine: Any, model: str) -> None:
    use_engine()

    result = run_command("bench", "latency", "-m", model, *SMALL, "--json")

    (record,) = json.loads(result.out)
    assert record["concurrency"] == 1
    assert {figure["name"] for figure in record["figures"]} >= {"p99_itl_ms", "output_throughput"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("throughput", "--request-rate", "0"), "--request-rate: expected more than 0"),
        (("throughput", "--request-rate", "nan"), "--request-rate: expected more than 0"),
        (("throughput", "--request-rate", "5", "--concurrency", "2"), "choose one loop"),
        (("latency", "--dataset", "sharegpt"), "sharegpt"),
        (("latency", "--input-len", "390", "--output-len", "64"), "context of 400"),
    ],
)
def test_bench_serving_input_that_cannot_be_used_ends_with_code_2(
    args: tuple[str, ...], message: str, run_command: RunCommand, use_engine: Any, model: str
) -> None:
    use_engine()

    result = run_command("bench", *args, "-m", model)

    assert result.code == 2
    assert message in result.err
