"""Loading: every tensor of a checkpoint is placed, or named as one to ignore, or an error.

Nothing is read before the whole list of names, shapes and dtypes is accounted for.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Protocol

from pyvt.errors import CheckpointError, ConfigError, did_you_mean
from pyvt.log import get_logger
from pyvt.tensor.dtype import BF16, F16, F32, F64, DType
from pyvt.tensor.memory import available_host_bytes
from pyvt.weights.param import VECTOR, Convert, Parameter, ParamSlot, Prepack
from pyvt.weights.source import TensorInfo, WeightSource

log = get_logger(__name__)

Progress = Callable[[int, int], None]
EXPAND_MODES = ("auto", "always", "never")
_EXPAND_SHARE = 0.5
_WEIGHT_DTYPES = (F64, F32, F16, BF16)
_MAX_NAMED = 5
# Of the file's pages that stay mapped while weights are laid out: letting go takes time too.
_RELEASE_BYTES = 16 << 20


class HasSlots(Protocol):
    """What the loader asks of a model: its slots by checkpoint name."""

    def named_slots(self, path: str = "") -> Iterable[tuple[str, Parameter, ParamSlot]]:
        """Yield every slot with the name of the tensor that fills it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What was loaded.

    Attributes:
        num_tensors: tensors placed.
        num_parameters: logical elements of them.
        file_bytes: their bytes in the file.
        resident_bytes: bytes that the model's parameters hold.
        dtypes: number of tensors of each stored dtype.
        ignored: names of tensors that the model knows and does not use.
        seconds: wall time.
    """

    num_tensors: int
    num_parameters: int
    file_bytes: int
    resident_bytes: int
    dtypes: dict[str, int]
    ignored: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandDecision:
    """Whether matrices are widened once at load, and why."""

    is_expanded: bool
    reason: str


def decide_expand(
    mode: str,
    source: WeightSource,
    wide: DType,
    backend: str = "numpy",
    *,
    free_bytes: int | None = None,
) -> ExpandDecision:
    """Return whether to widen matrices to ``wide`` at load.

    The reference decodes a packed or half weight anew in every product, so ``auto`` widens there
    where that takes at most half of the free memory; native kernels read weights as stored.
    ``free_bytes`` of None asks the system.
    """
    if mode not in EXPAND_MODES:
        raise ConfigError(
            f"[config] expand: {mode!r} is unknown; {did_you_mean(mode, EXPAND_MODES)}",
            field="expand",
        )
    if mode != "auto":
        return ExpandDecision(is_expanded=mode == "always", reason=f"set to {mode}")
    if backend != "numpy":
        return ExpandDecision(is_expanded=False, reason=f"backend {backend} reads stored weights")
    infos = [source.info(name) for name in source.names()]
    need = sum(info.size * wide.block_bytes for info in infos if info.dtype is not wide)
    have = available_host_bytes() if free_bytes is None else free_bytes
    return ExpandDecision(
        is_expanded=need <= have * _EXPAND_SHARE,
        reason=f"{wide} weights take {need >> 20} MiB of {have >> 20} MiB free",
    )


@dataclass(slots=True)
class _Plan:
    """The accounted-for content of a source: slots with their tensors, and ignored names."""

    slots: list[tuple[Parameter, ParamSlot, TensorInfo]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def load_weights(
    model: HasSlots,
    source: WeightSource,
    convert: Convert,
    prepack: Prepack,
    *,
    ignored: Collection[str] = (),
    progress: Progress | None = None,
) -> LoadReport:
    """Fill every parameter of ``model`` from ``source``.

    Args:
        model: the tree of modules.
        source: the open checkpoint.
        convert: makes of a stored tensor what its parameter keeps.
        prepack: makes of the rows of a matrix the weight of its products.
        ignored: regular expressions of names that the model knows and does not use.
        progress: called with bytes done and bytes in all, at the start and after each parameter.

    Raises:
        CheckpointError: a tensor is unknown, missing, given twice, of the wrong shape or of a dtype
            that its parameter cannot hold; ``path`` and ``tensor`` name it.
    """
    start = time.perf_counter()
    plan = _account(model, source, ignored)
    total = sum(info.nbytes for _, _, info in plan.slots)
    done = unreleased = 0
    parameters = {id(parameter): parameter for parameter, _, _ in plan.slots}
    filling: dict[int, list[tuple[ParamSlot, TensorInfo]]] = {}
    for parameter, slot, info in plan.slots:
        filling.setdefault(id(parameter), []).append((slot, info))
    if progress is not None:
        progress(0, total)
    for key, slots in filling.items():
        for slot, info in slots:
            parameters[key].place(slot, source.get(info.name))
            done += info.nbytes
        parameters[key].finish(convert, prepack)
        unreleased += sum(info.nbytes for _, info in slots)
        if unreleased > _RELEASE_BYTES:
            source.release()
            unreleased = 0
        if progress is not None:
            progress(done, total)
    source.release()
    report = LoadReport(
        num_tensors=len(plan.slots),
        num_parameters=sum(info.size for _, _, info in plan.slots),
        file_bytes=total,
        resident_bytes=sum(parameter.nbytes for parameter in parameters.values()),
        dtypes=dict(Counter(info.dtype.name for _, _, info in plan.slots)),
        ignored=tuple(plan.ignored),
        seconds=time.perf_counter() - start,
    )
    log.info(
        "loaded tensors=%d bytes=%d resident_bytes=%d ignored=%d seconds=%.2f",
        report.num_tensors,
        report.file_bytes,
        report.resident_bytes,
        len(report.ignored),
        report.seconds,
    )
    return report


def check_weights(model: HasSlots, source: WeightSource, *, ignored: Collection[str] = ()) -> None:
    """Account for every tensor as ``load_weights`` does, and read none. Raises CheckpointError."""
    _account(model, source, ignored)


def _account(model: HasSlots, source: WeightSource, ignored: Collection[str]) -> _Plan:
    """Match names to slots and check shapes and dtypes, without touching data."""
    wanted: dict[str, tuple[Parameter, ParamSlot]] = {}
    for name, parameter, slot in model.named_slots():
        assert name not in wanted, f"{name}: two slots have one checkpoint name"
        wanted[name] = (parameter, slot)
    patterns = [re.compile(pattern) for pattern in ignored]
    plan, seen, last = _Plan(), set[str](), None
    for name in source.names():
        info = last = source.info(name)
        if name in seen:
            raise _error(info, "one tensor of this name", "two")
        seen.add(name)
        if name in wanted:
            parameter, slot = wanted[name]
            _check(info, parameter, slot)
            plan.slots.append((parameter, slot, info))
        elif any(pattern.fullmatch(name) for pattern in patterns):
            plan.ignored.append(name)
        else:
            raise _error(info, "a name that the architecture has", _nearest(name, wanted))
    missing = _missing(wanted, seen)
    if missing:
        more = f" and {len(missing) - _MAX_NAMED} more" if len(missing) > _MAX_NAMED else ""
        where = None if last is None else last.path
        raise CheckpointError(
            f"[weights] {str(where)!r}: expected {len(wanted)} tensors, "
            f"got none named {', '.join(missing[:_MAX_NAMED])}{more}",
            path=where,
            tensor=missing[0],
        )
    _check_experts(plan)
    return plan


def _missing(wanted: dict[str, tuple[Parameter, ParamSlot]], seen: set[str]) -> list[str]:
    """Return the names that nothing fills: of experts all single ones where their stack is missing.

    Where no expert is there either, the stack's name stands for them.
    """
    filled = {id(wanted[name][0]) for name in wanted if name in seen}
    stacked = {id(p) for name, (p, slot) in wanted.items() if slot is p.stack and name in seen}
    missing = []
    for name, (parameter, slot) in wanted.items():
        if name in seen or id(parameter) in stacked:
            continue
        is_single = slot is not parameter.stack
        if parameter.stack is None or is_single == (id(parameter) in filled):
            missing.append(name)
    return missing


def _check_experts(plan: _Plan) -> None:
    """Check that experts are given once, as a stack or one by one, and have one dtype."""
    first: dict[int, tuple[ParamSlot, TensorInfo]] = {}
    for parameter, slot, info in plan.slots:
        if parameter.stack is None:
            continue
        known, known_info = first.setdefault(id(parameter), (slot, info))
        if slot is not known and parameter.stack in (slot, known):
            raise _error(info, "experts as a stack or one by one", f"{known_info.name} too")
        if info.dtype is not known_info.dtype:
            raise _error(info, f"dtype {known_info.dtype} as {known_info.name}", info.dtype)


def _nearest(name: str, wanted: Iterable[str]) -> str:
    near = get_close_matches(name, list(wanted), n=1)
    return f"an unknown one, near {near[0]!r}" if near else "an unknown one"


def _check(info: TensorInfo, parameter: Parameter, slot: ParamSlot) -> None:
    if info.shape != slot.shape:
        raise _error(info, f"shape {slot.shape} from the config", info.shape)
    if info.dtype in _WEIGHT_DTYPES:
        return
    if not info.dtype.is_block:
        raise _error(
            info, f"dtype {'|'.join(d.name for d in _WEIGHT_DTYPES)} or blocks", info.dtype
        )
    if parameter.role == VECTOR:
        raise _error(info, "a plain float dtype for a norm or a bias", info.dtype)


def _error(info: TensorInfo, expected: str, got: object) -> CheckpointError:
    return CheckpointError(
        f"[weights] {info.name} in {str(info.path)!r}: expected {expected}, got {got}",
        path=info.path,
        tensor=info.name,
    )
