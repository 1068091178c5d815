"""Records of a made-up run, for the pages and the picture."""

from pyvt.testing.record import Figure, RunRecord, this_machine

MODEL = "smollm2-135m"


def record_of(*found: tuple[str, str, float], kernels: dict[str, str] | None = None) -> RunRecord:
    """Return a record of figures: name, unit, median."""
    return RunRecord(
        command="pyvt bench",
        model=MODEL,
        model_id="sha256:0",
        backend="cpu",
        dtype="f32",
        prompt_tokens=512,
        new_tokens=16,
        concurrency=16,
        threads=2,
        machine=this_machine(),
        commit="0",
        features=("pyvt", "llama.cpp"),
        figures=tuple(Figure.of(name, unit, [median]) for name, unit, median in found),
        kernels=kernels or {"relu M=1": "native"},
    )


PEERS = record_of(
    ("pyvt decode@128", "tokens/s", 90.0),
    ("llama.cpp decode@128", "tokens/s", 60.0),
    ("pyvt decode@128, busy core", "tokens/s", 45.0),
    ("ratio decode@128", "x", 1.5),
    ("share of limit decode@128", "", 0.8),
    ("pyvt resident", "MB", 300.0),
    ("llama.cpp resident", "MB", 320.0),
)
OPS = record_of(
    ("packed_linear q8_0 8x8 M=1", "µs", 1.0),
    ("packed_linear q8_0 8x8 M=1: share of read", "", 0.9),
    ("packed_linear q8_0 8x8 M=256", "µs", 9.0),
    ("packed_linear q8_0 8x8 M=256: share of peak", "", 0.5),
    ("relu M=1", "µs", 1.0),
    ("relu M=1: share of read", "", 0.4),
    kernels={
        "relu M=1": "native",
        "packed_linear q8_0 8x8 M=1": "native",
        "packed_linear q8_0 8x8 M=256": "native",
    },
)
