"""``pyvt eval``: perplexity of a model on a text, and its divergence from another one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pyvt.cli.args import field_options, given
from pyvt.cli.model_path import model_path
from pyvt.cli.session import ENGINE_OPTIONS
from pyvt.cli.terminal import counting, loading
from pyvt.config import DeviceConfig, engine_config
from pyvt.engine.build import build_engine
from pyvt.errors import ConfigError, RequestError
from pyvt.evaluation import divergence, perplexity, text_windows
from pyvt.evaluation.windows import Windows
from pyvt.llm import LLM
from pyvt.models.registry import model_config
from pyvt.weights.resolve import open_model

DEVICE_FIELDS = ENGINE_OPTIONS[DeviceConfig]
_MAX_TEXT_BYTES = 256 << 20


def text_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the text, the sizes of its windows and how models are run."""
    for decorate in (
        click.option("--json", "is_json", is_flag=True, help="print one JSON object, nothing else"),
        field_options(DeviceConfig, DEVICE_FIELDS),
        click.option("--max-tokens", type=click.IntRange(2), help="tokens of FILE to take"),
        click.option(
            "--stride", type=click.IntRange(1), help="between windows  [default: half a window]"
        ),
        click.option(
            "--window", type=click.IntRange(2), default=512, show_default=True, help="in tokens"
        ),
        click.argument("file", type=click.Path(path_type=Path)),
    ):
        command = decorate(command)
    return command


@click.group("eval")
def evaluate() -> None:
    """Judge a model on a text: how well it predicts it, and how like another model it does."""


@evaluate.command()
@click.argument("model")
@text_options
def ppl(
    model: str,
    file: Path,
    window: int,
    stride: int | None,
    max_tokens: int | None,
    is_json: bool,
    **options: Any,
) -> int:
    """Print the perplexity of MODEL on the text FILE.

    The text is read in windows; every token is scored once, with the tokens of its window before
    it.
    """
    text = _text(file)
    llm = _load(model, window, options)
    windows = text_windows(llm.tokenizer, text, window=window, stride=stride, max_tokens=max_tokens)
    with counting("tokens", windows.num_scored) as progress:
        found = perplexity(llm, windows, progress=progress)
    facts = {"model": model, **found.as_dict()}
    line = (
        f"perplexity {found.perplexity:.4f} ± {found.error:.4f} over {found.num_tokens} tokens "
        f"({found.nats_per_token:.4f} nats a token, {_sizes(windows)})"
    )
    click.echo(json.dumps(facts) if is_json else line)
    return 0


@evaluate.command()
@click.argument("model")
@click.option("--reference", required=True, help="the model to compare with, of one tokenizer")
@text_options
def kl(
    model: str,
    reference: str,
    file: Path,
    window: int,
    stride: int | None,
    max_tokens: int | None,
    is_json: bool,
    **options: Any,
) -> int:
    """Print how far the next tokens of MODEL are from those of the reference on the text FILE.

    The figures are of the KL divergence in nats at each token, and the share of tokens at which
    both have the same most likely one. Both models are in memory at once.
    """
    text = _text(file)
    other = _load(reference, window, options)
    llm = _load(model, window, options)
    windows = text_windows(llm.tokenizer, text, window=window, stride=stride, max_tokens=max_tokens)
    with counting("tokens", windows.num_scored) as progress:
        found = divergence(llm, other, windows, progress=progress)
    if is_json:
        click.echo(json.dumps({"model": model, "reference": reference, **found.as_dict()}))
        return 0
    click.echo(
        f"KL divergence over {found.num_tokens} tokens ({_sizes(windows)}): mean "
        f"{found.mean_kl:.6f}, median {found.median_kl:.6f}, 99 % {found.p99_kl:.6f}, max "
        f"{found.max_kl:.6f}\n"
        f"same most likely token: {found.top1_agreement:.2%}\n"
        f"perplexity {found.perplexity:.4f}, reference {found.reference_perplexity:.4f}"
    )
    return 0


def _sizes(windows: Windows) -> str:
    return f"window {windows.window}, stride {windows.stride}"


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MAX_TEXT_BYTES:
            raise RequestError(
                f"[eval] {str(file)!r}: expected at most {_MAX_TEXT_BYTES >> 20} MiB, got "
                f"{file.stat().st_size >> 20} MiB; cut the text"
            )
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(
            f"[eval] {str(file)!r}: expected a text file in UTF-8, got "
            f"{error.strerror if isinstance(error, OSError) else error}"
        ) from error


def _load(model: str, window: int, options: dict[str, Any]) -> LLM:
    """Load a model for windows of that many tokens, a prefix and one token more."""
    path = model_path(model)
    files = open_model(path)
    try:
        longest = model_config(files).max_position_embeddings
    finally:
        files.close()
    if window + 2 > longest:
        raise ConfigError(
            f"[eval] window: expected at most {longest - 2} for {model}, got {window}",
            field="window",
        )
    # A prefix is one token, or a few.
    length = min(window + 8, longest)
    settings = given(options, DEVICE_FIELDS) | {"max_model_len": length, "max_num_seqs": 1}
    with loading(model) as progress:
        return LLM.from_engine(
            build_engine(engine_config(str(path), **settings), progress=progress)
        )
