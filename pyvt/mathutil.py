"""Integer arithmetic that several packages share, and nothing else."""


def cdiv(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Return the smallest multiple of ``b`` that is at least ``a``."""
    return cdiv(a, b) * b
