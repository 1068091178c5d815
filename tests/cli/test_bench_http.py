"""``pyvt bench serve`` over a server on loopback."""

import json
from pathlib import Path

import pytest

from pyvt.testing.record import RunRecord
from pyvt.testing.serving_load import METRICS
from tests.cli.conftest import RunCommand
from tests.cli.test_remote import Serve, serve
from tests.server.test_run import on_loopback

__all__ = ["serve"]

SMALL = ("--num-prompts", "4", "--input-len", "8", "--output-len", "6")
ANSWER = "ab" * 50


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("--endpoint", "chat"),
        ("--concurrency", "2"),
        ("--request-rate", "200", "--dataset", "shared-prefix"),
    ],
)
def test_bench_serve_prints_every_figure_by_its_name(
    serve: Serve, run_command: RunCommand, tmp_path: Path, args: tuple[str, ...]
) -> None:
    server = serve([ANSWER])
    out = tmp_path / "out"
    with on_loopback(server) as url:
        result = run_command("bench", "serve", "--url", url, *SMALL, *args, "--out", str(out))

    assert result.code == 0, result.err
    assert [line.split()[0] for line in result.out.splitlines()] == [
        "figure",
        *[f"{kind}_{m}_ms" for m in METRICS for kind in ("mean", "median", "p50", "p90", "p99")],
        "request_throughput",
        "output_throughput",
        "total_token_throughput",
    ]  # fmt: skip
    record = RunRecord.from_json((out / "serve.json").read_text())
    counts = {figure.name: figure.n for figure in record.figures}
    # Six tokens an answer: five gaps; the first answer warms up and does not count.
    assert (counts["mean_ttft_ms"], counts["mean_itl_ms"]) == (4, 20)
    assert server.engine.core.stats.num_generation_tokens == 5 * 6


def test_bench_serve_as_json_with_a_picture(
    serve: Serve, run_command: RunCommand, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    with on_loopback(serve([ANSWER], config={"api_key": ("k",)})) as url:
        result = run_command(
            *("bench", "serve", "--url", url, "--api-key", "k", "-m", "org/other", *SMALL),
            *("--percentiles", "95", "--json", "--plot", str(tmp_path / "times.svg")),
        )

    (record,) = json.loads(result.out)
    assert record["model"] == "org/other"
    assert {figure["name"] for figure in record["figures"]} >= {"p95_itl_ms", "output_throughput"}
    assert (tmp_path / "times.svg").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--percentiles", "x"), 2, "--percentiles: expected numbers"),
        (("--percentiles", "101"), 2, "--percentiles: expected numbers"),
        (("--request-rate", "0"), 2, "--request-rate: expected more than 0"),
        (("--url", "nowhere"), 2, "expected http://HOST:PORT"),
        (("--url", "http://127.0.0.1:1"), 1, "expected a server"),
    ],
)
def test_bench_serve_that_cannot_run_says_why(
    run_command: RunCommand, args: tuple[str, ...], code: int, message: str
) -> None:
    result = run_command("bench", "serve", *SMALL, *args)

    assert result.code == code
    assert message in result.err
