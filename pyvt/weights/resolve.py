"""From a path to an open model: its weights, its config and its tokenizer files, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pyvt.errors import CheckpointError
from pyvt.log import get_logger
from pyvt.weights.gguf import GGUFSource, open_gguf
from pyvt.weights.quantized import QuantizedSource, scheme_of
from pyvt.weights.safetensors import SafetensorsSource
from pyvt.weights.shards import (
    member_path,
    numbered_name,
    open_safetensors_file,
    open_safetensors_folder,
    set_parts,
)
from pyvt.weights.source import WeightSource
from pyvt.weights.strict_json import read_json_object, read_text

log = get_logger(__name__)

MAX_TOKENIZER_BYTES = 128 << 20
MAX_TEMPLATE_BYTES = 1 << 20
DEFAULT_TEMPLATE = "default"
_GGUF_TEMPLATE = "tokenizer.chat_template"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFiles:
    """An open model. Whoever opened it closes it, after the last tensor was copied or dropped.

    Attributes:
        path: what was asked for.
        kind: the format of the weights.
        source: the weights.
        config: config.json; None for GGUF.
        generation_config: generation_config.json; None where there is none.
        gguf_metadata: the metadata of the (first) GGUF file; None for safetensors.
        tokenizer_json: the text of tokenizer.json; None where there is none, and for GGUF.
        tokenizer_config: tokenizer_config.json; None where there is none, and for GGUF.
        chat_templates: name → Jinja text, ``default`` first; empty where the model has none.
    """

    path: Path
    kind: Literal["safetensors", "gguf"]
    source: WeightSource
    config: Mapping[str, Any] | None = None
    generation_config: Mapping[str, Any] | None = None
    gguf_metadata: Mapping[str, Any] | None = None
    tokenizer_json: str | None = None
    tokenizer_config: Mapping[str, Any] | None = None
    chat_templates: Mapping[str, str]

    def close(self) -> None:
        """Let go of the mapped files; may be called twice."""
        self.source.close()


def open_model(path: str | Path) -> ModelFiles:
    """Open a model: a folder, a ``.gguf`` or a ``.safetensors`` file.

    A folder holds safetensors with a config.json, or one GGUF model. Headers and small files are
    read, weights are only mapped. A GGUF file is taken alone: files beside it are not read.

    Raises:
        CheckpointError: nothing is there, the choice is not clear, or a file is damaged.
        UnsupportedError: a tensor's element type cannot be read.
    """
    path = Path(path)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:
        raise CheckpointError(f"[model] {str(path)!r}: {error}", path=path) from error
    if is_folder:
        return _open_folder(path)
    if is_file and path.suffix == ".gguf":
        return _gguf_files(path, open_gguf(path))
    if is_file and path.suffix == ".safetensors":
        return _safetensors_files(path, path.parent, open_safetensors_file(path))
    got = "another kind of file" if is_file or path.exists() else "nothing there"
    raise CheckpointError(
        f"[model] {str(path)!r}: expected a folder, a .gguf or a .safetensors file, got {got}; "
        "pyvt pull and pyvt.hub.pull turn a name into a path",
        path=path,
    )


def _open_folder(folder: Path) -> ModelFiles:
    ggufs = sorted(
        file.name for file in folder.glob("*.gguf") if not file.name.startswith("mmproj")
    )
    if any(folder.glob("*.safetensors")) or any(folder.glob("*.safetensors.index.json")):
        if ggufs:
            log.warning("gguf files beside safetensors ignored: %s", ", ".join(ggufs))
        return _safetensors_files(folder, folder, open_safetensors_folder(folder))
    sets: dict[str, str] = {}
    for name in ggufs:
        numbered = numbered_name(name)
        sets.setdefault(numbered.set_name if numbered else name, name)
    if len(sets) != 1:
        raise CheckpointError(
            f"[model] {str(folder)!r}: expected safetensors or one GGUF model, got "
            f"{', '.join(sets.values())[:400] or 'neither'}; give the path of the file",
            path=folder,
        )
    name = next(iter(sets.values()))
    numbered = numbered_name(name)
    if numbered is not None:
        set_parts(folder, numbered)
    return _gguf_files(folder, open_gguf(member_path(folder, name)))


def _gguf_files(path: Path, source: GGUFSource) -> ModelFiles:
    templates = {}
    for key, value in source.metadata.items():
        if key == _GGUF_TEMPLATE or key.startswith(_GGUF_TEMPLATE + "."):
            name = key.removeprefix(_GGUF_TEMPLATE).lstrip(".") or DEFAULT_TEMPLATE
            templates[name] = _check_template(source.path, value)
    return ModelFiles(
        path=path,
        kind="gguf",
        source=source,
        gguf_metadata=source.metadata,
        chat_templates=_default_first(templates),
    )


def _safetensors_files(path: Path, folder: Path, source: SafetensorsSource) -> ModelFiles:
    config = _json(folder, "config.json")
    if config is None:
        raise CheckpointError(
            f"[model] {str(folder / 'config.json')!r}: expected the model's config beside its "
            "weights, got no such file; download the whole repository",
            path=folder / "config.json",
        )
    tokenizer_config = _json(folder, "tokenizer_config.json")
    scheme = scheme_of(config, _json(folder, "hf_quant_config.json"))
    return ModelFiles(
        path=path,
        kind="safetensors",
        source=source if scheme is None else QuantizedSource(source, scheme),
        config=config,
        generation_config=_json(folder, "generation_config.json"),
        tokenizer_json=_text(folder, "tokenizer.json", MAX_TOKENIZER_BYTES),
        tokenizer_config=tokenizer_config,
        chat_templates=_chat_templates(folder, tokenizer_config or {}),
    )


def chat_template_file(path: Path) -> dict[str, str]:
    """Return the templates of a model whose messages are to become prompts by one file.

    Raises CheckpointError: it is not there, or is no text.
    """
    return {DEFAULT_TEMPLATE: read_text(path, MAX_TEMPLATE_BYTES)}


def _chat_templates(folder: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the templates of the first place that has one: files, tokenizer config, legacy file.

    Source: transformers ``PreTrainedTokenizerBase``, the order of its template files.
    """
    templates = {}
    single = _text(folder, "chat_template.jinja", MAX_TEMPLATE_BYTES)
    if single is not None:
        templates[DEFAULT_TEMPLATE] = single
    more = folder / "additional_chat_templates"
    if more.is_dir():
        for file in sorted(more.glob("*.jinja")):
            templates[file.stem] = read_text(member_path(more, file.name), MAX_TEMPLATE_BYTES)
    if templates:
        return _default_first(templates)
    path = folder / "tokenizer_config.json"
    stored = tokenizer_config.get("chat_template")
    if stored is None:
        path = folder / "chat_template.json"
        stored = (_json(folder, path.name) or {}).get("chat_template")
    if stored is None:
        return {}
    if not isinstance(stored, list):
        return {DEFAULT_TEMPLATE: _check_template(path, stored)}
    for item in stored:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise _template_error(path, item)
        templates[item["name"]] = _check_template(path, item.get("template"))
    return _default_first(templates)


def _check_template(path: Path, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise _template_error(path, value)


def _template_error(path: Path, value: Any) -> CheckpointError:
    return CheckpointError(
        f"[model] {str(path)!r}: expected chat_template a string or a list of name and template, "
        f"got {repr(value)[:80]}",
        path=path,
    )


def _default_first(templates: dict[str, str]) -> dict[str, str]:
    return dict(sorted(templates.items(), key=lambda item: item[0] != DEFAULT_TEMPLATE))


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    path = member_path(folder, name)
    return read_json_object(path) if path.exists() else None


def _text(folder: Path, name: str, max_bytes: int) -> str | None:
    path = member_path(folder, name)
    return read_text(path, max_bytes) if path.exists() else None
