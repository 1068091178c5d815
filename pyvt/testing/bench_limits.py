"""What the machine can do at best, and which limit bounds a product of each format."""

from dataclasses import dataclass

from pyvt import backends

# The integer or float loop that products of a weight format are made of; a key of the probe's
# rates. On AVX2 codes of up to five bits are summed in 16 bits, and Q6_K sums in groups; Q8_0 needs
# a sign; fp8 has no codes.
LOOPS = {
    **dict.fromkeys(("f32", "bf16", "f16", "fp8_g128", "fp8_g32"), "fma_f32"),
    **dict.fromkeys(("q4_0", "q4_1", "q4_k", "q5_0", "q5_1", "q5_k"), "int4"),
    **{"q8_0": "int8_signed", "q6_k": "int8"},
}
OTHER_LOOP = "int8"


def loop_of(name: str, dtype: str = "f32") -> str:
    """Return the loop of a weight format with activations of a dtype."""
    return "bf16" if name == dtype == "bf16" else LOOPS.get(name, OTHER_LOOP)


@dataclass(frozen=True, slots=True)
class Limits:
    """Rates of all threads together.

    Attributes:
        read: GB/s of a plain read of memory.
        loops: GFLOP/s or GOP/s of each loop, a multiply and an add being two.
    """

    read: float
    loops: dict[str, float]

    def of_format(self, name: str, dtype: str = "f32") -> float:
        """Return GOP/s of the loop of a format with activations of a dtype."""
        return self.loops[loop_of(name, dtype)]


def measure_limits(repetitions: int = 3) -> Limits | None:
    """Measure the limits of the native backend's threads, by loops of the CPU level that it uses.

    None where it is not there.
    """
    if backends.why_not("cpu") is not None:
        return None
    from pyvt.backends.cpu import native

    rates = native().machine_limits(repetitions)
    return Limits(rates["read"], {k: v for k, v in rates.items() if k != "read" and v > 0})
