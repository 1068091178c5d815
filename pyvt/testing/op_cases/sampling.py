"""Cases of the sampling family.

Parameter arrays start with their off value, so that every case has a row that keeps its bits.
"""

from typing import Any

import numpy as np

from pyvt.testing.op_cases.case import SELF, Inputs, MakeInputs, normal, rows

LOGIT_DTYPES = ("f32", "f64")
LOGIT_SCALE = 3.0


def _logits(num_rows: int, vocab_size: int, values: list[float] | None = None) -> MakeInputs:
    """Make random logits; with ``values``, small multiples of these, so that they tie."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        if values is None:
            return {"logits": normal(rng, dtype, num_rows, vocab_size, scale=LOGIT_SCALE)}
        return {"logits": rng.choice(values, (num_rows, vocab_size)).astype(dtype)}

    return make


def _hard(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
    """Make rows with −inf: some, all but one, none."""
    logits = normal(rng, dtype, 3, 17, scale=LOGIT_SCALE)
    logits[0, ::3] = -np.inf
    logits[1, 1:] = -np.inf
    return {"logits": logits}


def _with(base: MakeInputs, **columns: tuple[str, list[float]]) -> MakeInputs:
    """Add parameter arrays: name → (dtype, values); dtype ``float`` is that of the case."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        inputs = base(rng, dtype)
        num_rows = len(inputs["logits"])
        for name, (kind, values) in columns.items():
            column = np.resize(np.array(values), num_rows)
            inputs[name] = column.astype(dtype if kind == "float" else kind)
        return inputs

    return make


def _filter(base: MakeInputs, top_k: list[float], top_p: list[float]) -> MakeInputs:
    return _with(base, top_k=("int32", top_k), top_p=("float", top_p))


def _draw(base: MakeInputs) -> MakeInputs:
    seeds = [0.0, 1.0, 42.0, 2.0**63]
    return _with(base, seeds=("uint64", seeds), positions=("int64", [0, 7, 1000, 2**40]))


def _drafts(num_drafts: list[int], num_kept: list[int]) -> MakeInputs:
    """Make drafts of which the first ``num_kept`` of each request are right."""

    def make(rng: np.random.Generator, dtype: "np.dtype[Any]") -> Inputs:
        cu_num_drafts = np.cumsum([0, *num_drafts])
        token_ids = rng.integers(0, 1000, int(cu_num_drafts[-1]) + len(num_drafts))
        drafts = []
        for r, (num, kept) in enumerate(zip(num_drafts, num_kept, strict=True)):
            tokens = token_ids[cu_num_drafts[r] + r :][:num].copy()
            tokens[kept : kept + 1] += 1
            drafts.append(tokens)
        draft_ids = np.concatenate([np.empty(0, np.int64), *drafts])
        return {"token_ids": token_ids, "draft_ids": draft_ids, "cu_num_drafts": cu_num_drafts}

    return make


TEMPERATURES = ("float", [1.0, 0.0, 0.25, 0.7, 2.0])
MIN_PS = ("float", [0.0, 0.05, 0.3, 1.0])
TIES = [-1.0, 0.0, 1.0, 2.0]

CASES = (
    *rows(
        {
            "one": _logits(1, 1),
            "odd": _logits(3, 33),
            "masked": _hard,
            "empty": _logits(0, 5),
        },
        "count_nonfinite",
    ),
    *rows(
        {
            "one": _with(_logits(1, 1), temperature=("float", [0.5])),
            "odd": _with(_logits(5, 33), temperature=TEMPERATURES),
            "masked": _with(_hard, temperature=("float", [0.3])),
            "empty": _with(_logits(0, 5), temperature=TEMPERATURES),
        },
        "apply_temperature",
        dtypes=LOGIT_DTYPES,
    ),
    *rows(
        {"border": _with(_logits(4, 5), temperature=("float", [2e-5, 9e-6, 1e-3, 0.02]))},
        "apply_temperature",
        dtypes=LOGIT_DTYPES,
        has_golden=False,
    ),
    *rows(
        {
            "one": _with(_logits(1, 1), min_p=("float", [0.9])),
            "odd": _with(_logits(4, 33), min_p=MIN_PS),
            "masked": _with(_hard, min_p=("float", [0.1])),
            "empty": _with(_logits(0, 5), min_p=MIN_PS),
        },
        "apply_min_p",
        dtypes=LOGIT_DTYPES,
        op_class="exact",
    ),
    *rows(
        {
            "one": _filter(_logits(1, 1), [1], [0.5]),
            "top_k": _filter(_logits(6, 33), [0, 1, 5, 32, 33, 100], [1.0]),
            "top_k_ties": _filter(_logits(4, 33, TIES), [0, 2, 5, 20], [1.0]),
            "top_p": _filter(_logits(6, 33), [0], [1.0, 0.001, 0.3, 0.5, 0.9, 0.999]),
            "top_k_top_p": _filter(_logits(6, 65), [-1, 3, 10, 40], [1.0, 0.9, 0.6]),
            "flat": _filter(_logits(2, 700, [0.0]), [0], [1.0]),
            "masked": _filter(_hard, [0, 5, 3], [0.9]),
            "empty": _filter(_logits(0, 5), [3], [0.5]),
        },
        "apply_top_k_top_p",
        dtypes=LOGIT_DTYPES,
        op_class="exact",
    ),
    *rows(
        {"smollm_vocab": _filter(_logits(2, 49152), [0, 20], [0.95])},
        "apply_top_k_top_p",
        dtypes=("f32",),
        op_class="exact",
        has_golden=False,
    ),
    *rows(
        {
            "one": _logits(1, 1),
            "odd": _logits(4, 33),
            "ties": _logits(5, 40, TIES),
            "masked": _hard,
            "empty": _logits(0, 5),
        },
        "argmax",
        dtypes=LOGIT_DTYPES,
    ),
    *rows({"qwen3_vocab": _logits(1, 151936)}, "argmax", dtypes=("f32",), has_golden=False),
    *rows(
        {
            "one": _draw(_logits(1, 1)),
            "odd": _draw(_logits(8, 33)),
            "ties": _draw(_logits(8, 40, TIES)),
            "masked": _draw(_hard),
            "empty": _draw(_logits(0, 5)),
        },
        "random_sample",
        dtypes=LOGIT_DTYPES,
        origin=SELF,
    ),
    *rows(
        {"qwen3_vocab": _draw(_logits(1, 151936))},
        "random_sample",
        dtypes=("f32",),
        has_golden=False,
    ),
    *rows(
        {
            "one": _drafts([0], [0]),
            "all_kept": _drafts([4], [4]),
            "mixed": _drafts([3, 0, 5, 1, 2], [1, 0, 5, 0, 2]),
            "none_kept": _drafts([2, 2], [0, 0]),
            "empty": _drafts([], []),
        },
        "rejection_sample",
        dtypes=("f32",),
        op_class="exact",
        origin=SELF,
        takes_out=False,
    ),
)
