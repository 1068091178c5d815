"""Which files of a folder make up a model, and which names may leave the folder: none.

Names of shards come from a file that somebody else wrote. A name must be a plain file name; where
the folder holds a symbolic link of that name, its target must lie inside the folder, or inside the
``blobs`` of the same repository where the folder is a snapshot of the Hugging Face cache
(``<repo>/snapshots/<revision>/``, whose files are links to ``<repo>/blobs/``).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from pyvt.errors import CheckpointError
from pyvt.log import get_logger
from pyvt.weights.safetensors import SafetensorsFile, SafetensorsSource, read_safetensors
from pyvt.weights.strict_json import read_json_object

log = get_logger(__name__)

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_NAME_BYTES = 255
_NUMBERED = re.compile(
    r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class NumberedName:
    """A name of the form ``stem-00001-of-00003.suffix``, as split models use."""

    stem: str
    number: int
    count: int
    suffix: str

    def part(self, number: int) -> str:
        """Return the name of another part of the same set."""
        return f"{self.stem}-{number:05d}-of-{self.count:05d}{self.suffix}"

    @property
    def set_name(self) -> str:
        """What all parts share, for grouping."""
        return f"{self.stem}-of-{self.count:05d}{self.suffix}"


def numbered_name(name: str) -> NumberedName | None:
    """Return the parts of a split file's name, None for a name of another form."""
    match = _NUMBERED.fullmatch(name)
    if match is None:
        return None
    return NumberedName(match["stem"], int(match["number"]), int(match["count"]), match["suffix"])


def member_path(folder: Path, name: str) -> Path:
    """Return the path of a file of ``folder``, which need not exist.

    Raises CheckpointError where the name is not plain or its link leaves the folder (see above).
    """
    check_plain_name(folder, name)
    path = folder / name
    try:
        target, root = path.resolve(), folder.resolve()
    except (OSError, RuntimeError) as error:
        raise CheckpointError(
            f"[model] {str(path)!r}: expected a file, got {error}", path=path
        ) from error
    allowed = [root]
    for parent in root.parents:
        if parent.name == "snapshots":
            allowed.append((parent.parent / "blobs").resolve())
            break
    if not any(target.is_relative_to(place) for place in allowed):
        raise CheckpointError(
            f"[model] {str(path)!r}: expected a file inside its folder, got a link to "
            f"{str(target)!r}; copy the file or open the folder that holds it",
            path=path,
        )
    return path


def check_plain_name(path: Path, name: str, tensor: str | None = None) -> None:
    """Raise CheckpointError where ``name``, which ``path`` gives, is more than a file name."""
    is_plain = name not in ("", ".", "..") and not any(char in name for char in "/\\\0")
    if not is_plain or len(name.encode()) > MAX_NAME_BYTES:
        raise _error(
            path, "a plain file name", f"{name[:200]!r}; shards must lie beside their index", tensor
        )


def open_safetensors_folder(folder: Path) -> SafetensorsSource:
    """Open the model of a folder: one file, the shards of the index, or a complete numbered set.

    Raises CheckpointError for a missing shard, a tensor that is not where the index says, a tensor
    in two shards, and a folder whose choice is not clear.
    """
    index_path = folder / INDEX_NAME
    if (folder / SINGLE_NAME).exists():
        if index_path.exists():
            log.warning("index ignored: %s holds %s", str(folder), SINGLE_NAME)
        return SafetensorsSource([read_safetensors(member_path(folder, SINGLE_NAME))])
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if index_path.exists():
        return _open_indexed(folder, found)
    if len(found) == 1 and numbered_name(found[0]) is None:
        return SafetensorsSource([read_safetensors(member_path(folder, found[0]))])
    return SafetensorsSource(_open_shards(folder, _only_set(folder, found)))


def open_safetensors_file(path: Path) -> SafetensorsSource:
    """Open one file, or the whole set where its name is that of one part."""
    numbered = numbered_name(path.name)
    if numbered is None:
        return SafetensorsSource([read_safetensors(path)])
    return SafetensorsSource(_open_shards(path.parent, set_parts(path.parent, numbered)))


def _open_indexed(folder: Path, found: list[str]) -> SafetensorsSource:
    index_path = member_path(folder, INDEX_NAME)
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _error(index_path, "a weight_map of names to files", repr(weight_map)[:80])
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise _error(index_path, "a file name", repr(shard)[:80], name)
        check_plain_name(index_path, shard, name)
    shards = sorted(set(weight_map.values()))
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        parts = _complete_set(found)
        if parts is None:
            tensor = next(name for name, shard in weight_map.items() if shard == missing[0])
            raise missing_shard(folder, missing[0], tensor)
        log.warning(
            "stale index ignored: %s names %s, which is not there; reading %d shards of another "
            "complete set",
            str(index_path),
            missing[0],
            len(parts),
        )
        return SafetensorsSource(_open_shards(folder, parts))
    files = _open_shards(folder, shards)
    _check_weight_map(index_path, weight_map, {file.path.name: file for file in files})
    unlisted = sorted(set(found) - set(shards))
    if unlisted:
        log.warning("files not in the index ignored: %s", ", ".join(unlisted))
    return SafetensorsSource(files)


def _check_weight_map(
    index_path: Path, weight_map: dict[str, str], files: dict[str, SafetensorsFile]
) -> None:
    for name, shard in weight_map.items():
        if name not in files[shard].entries:
            raise _error(
                files[shard].path,
                f"the tensor that {index_path.name} puts there",
                "none of that name; the index is stale: download the model again",
                name,
            )
    unlisted = [name for file in files.values() for name in file.entries if name not in weight_map]
    if unlisted:
        log.warning(
            "stale index: %s leaves out %d tensors of its shards, first %s",
            str(index_path),
            len(unlisted),
            unlisted[0],
        )


def _open_shards(folder: Path, names: list[str]) -> list[SafetensorsFile]:
    return [read_safetensors(member_path(folder, name)) for name in names]


def _only_set(folder: Path, found: list[str]) -> list[str]:
    sets = {numbered.set_name: numbered for numbered in map(numbered_name, found) if numbered}
    if len(sets) == 1:
        return set_parts(folder, next(iter(sets.values())))
    raise _error(
        folder,
        f"{SINGLE_NAME}, {INDEX_NAME} or one set of numbered shards",
        ", ".join(found)[:400] or "no .safetensors file",
    )


def set_parts(folder: Path, numbered: NumberedName) -> list[str]:
    """Return the names of all parts of a set. Raises CheckpointError for the first missing one."""
    if not 1 <= numbered.number <= numbered.count:
        raise _error(
            folder / numbered.part(numbered.number),
            f"a part of 1 to {numbered.count}",
            str(numbered.number),
        )
    parts = []
    for number in range(1, numbered.count + 1):
        name = numbered.part(number)
        if not (folder / name).exists():
            raise missing_shard(folder, name)
        parts.append(name)
    return parts


def _complete_set(found: list[str]) -> list[str] | None:
    for numbered in filter(None, map(numbered_name, found)):
        if numbered.count > len(found):
            continue
        parts = [numbered.part(number) for number in range(1, numbered.count + 1)]
        if parts and set(parts) <= set(found):
            return parts
    return None


def missing_shard(folder: Path, name: str, tensor: str | None = None) -> CheckpointError:
    """Return the error for a part that is not there; the caller raises it."""
    return _error(
        folder / name, "a shard of the model", "no such file; download the model again", tensor
    )


def _error(path: Path, expected: str, got: str, tensor: str | None = None) -> CheckpointError:
    subject = "" if tensor is None else f"tensor {tensor!r} "
    return CheckpointError(
        f"[model] {str(path)!r}: {subject}expected {expected}, got {got}", path=path, tensor=tensor
    )
