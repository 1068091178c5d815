"""``pyvt bench serve`` over a server on loopback."""

import json
from pathlib import Path

import pytest

from pyvt.testing.record import RunRecord
from pyvt.testing.serving_load import METRICS
from tests.cli.conftest import RunCommand
from tests.cli.test_remote import Serve, answering, serve
from tests.server.test_run import on_loopback

__all__ = ["serve"]

SMALL = ("--num-prompts", "4", "--input-len", "8", "--output-len", "6")
ANSWER = "ab" * 50
STREAMED = (
    b'HTTP/1.1 200 x\r\n\r\ndata: {"choices": [{"text": "a"}], '
    b'"usage": {"prompt_tokens": 8, "completion_tokens": 6}}\n\ndata: [DONE]\n\n'
)
FULL = b'HTTP/1.1 429 x\r\n\r\n{"error": {"message": "the queue is full"}}'


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
        "completed",
        "failed",
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


def test_bench_serve_goes_on_behind_requests_that_fail(run_command: RunCommand) -> None:
    answers = (STREAMED, STREAMED, FULL, FULL, STREAMED[:60])
    with answering(*answers) as url:
        result = run_command(
            *("bench", "serve", "--url", url, "-m", "x", *SMALL, "--concurrency", "1", "--json")
        )

    assert result.code == 0
    found = {f["name"]: f["median"] for f in json.loads(result.out)[0]["figures"]}
    assert (found["completed"], found["failed"]) == (1, 3)
    assert "2 of 4 requests failed: [server] 429: the queue is full\n" in result.err
    assert "1 of 4 requests failed: [url]" in result.err


def test_bench_serve_whose_requests_all_fail_ends_with_the_servers_sentence(
    run_command: RunCommand,
) -> None:
    with answering(STREAMED, *[FULL] * 4) as url:
        result = run_command("bench", "serve", "--url", url, "-m", "x", *SMALL)

    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "error: [bench] requests: all 4 failed, the first with [server] 429: the queue is full\n"
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-m", "nope"), "error: [server] 404: [request] model: 'nope' is not served"),
        (("--input-len", "900"), "error: [server] 400: [request] prompt: "),
    ],
)
def test_bench_serve_that_is_refused_at_once_says_what_the_server_says(
    serve: Serve, run_command: RunCommand, args: tuple[str, ...], message: str
) -> None:
    with on_loopback(serve([ANSWER])) as url:
        result = run_command("bench", "serve", "--url", url, *SMALL, *args)

    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(message)


@pytest.mark.parametrize("path", ["nowhere/x.svg", "x.nope", "folder.svg"])
def test_bench_serve_with_a_picture_that_cannot_be_written_is_refused_before_the_run(
    run_command: RunCommand, tmp_path: Path, path: str
) -> None:
    pytest.importorskip("matplotlib", reason="the extra 'plot' is not installed")
    (tmp_path / "folder.svg").mkdir()

    result = run_command(
        *("bench", "serve", "--url", "http://127.0.0.1:1", "--plot", str(tmp_path / path))
    )

    assert (result.code, result.out) == (2, "")
    assert "[bench] --plot: expected a" in result.err
