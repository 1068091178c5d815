"""Write ``pyvt/tensor/iq_grids.py``'s tables from the ``gguf`` package.

Run in an environment with gguf: ``python parity/dump_iq_grids.py``. It prints the literal
``_PACKED``; a test holds the committed one against it.
"""

import base64

import gguf.quants

NAMES = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
CHARS_PER_LINE = 80


def packed_codes(name: str) -> bytes:
    """Return the packed codes of a grid: what ``grid_hex`` of the format spells."""
    return bytes.fromhex(getattr(gguf.quants, name.upper()).grid_hex.decode())


def literal() -> str:
    """Return the source text of the table."""
    lines = ["_PACKED = {"]
    for name in NAMES:
        text = base64.b85encode(packed_codes(name)).decode()
        lines.append(f'    "{name}": (')
        for start in range(0, len(text), CHARS_PER_LINE):
            lines.append(f'        "{text[start : start + CHARS_PER_LINE]}"')
        lines.append("    ),")
    return "\n".join([*lines, "}"])


if __name__ == "__main__":
    print(literal())
