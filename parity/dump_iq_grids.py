"""Write the tables of ``pyvt/tensor/iq_grids.py`` and its twin in csrc from the ``gguf`` package.

Run in an environment with gguf: ``python parity/dump_iq_grids.py``. It prints the literal
``_PACKED``, then ``csrc/cpu/iq_grid_codes.h``; a test holds the committed ones against them.
"""

import base64
import struct

import gguf.quants

NAMES = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
CHARS_PER_LINE = 80
ROWS_PER_LINE = 12


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


def header() -> str:
    """Return the C++ source of the same codes, a row of a grid as one number of 16 bits."""
    lines = [
        "// Written by parity/dump_iq_grids.py: a number is a row of a grid, codes low bits first.",
        "// clang-format off",
        *("#pragma once", "", "#include <cstdint>", "", "namespace pyvt::cpu {", ""),
    ]
    for name in NAMES:
        packed = packed_codes(name)
        rows = [f"0x{row:04x}" for (row,) in struct.iter_unpack("<H", packed)]
        title = "".join(part.capitalize() for part in name.split("_"))
        lines.append(f"constexpr uint16_t k{title}Codes[{len(rows)}] = {{")
        for start in range(0, len(rows), ROWS_PER_LINE):
            lines.append("    " + ", ".join(rows[start : start + ROWS_PER_LINE]) + ",")
        lines += ["};", ""]
    return "\n".join([*lines, "}  // namespace pyvt::cpu", ""])


if __name__ == "__main__":
    print(literal())
    print(header())
