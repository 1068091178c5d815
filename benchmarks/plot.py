"""Draw the records in ``benchmarks/results``: shares of the limit by op, and ratios to peers.

    python -m benchmarks.plot [docs/performance.svg]

Needs matplotlib, the extra ``plot``. The picture depends on the records alone.
"""

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from pyvt.testing.docs_performance import op_shares, other_shares, peer_ratios

ROOT = Path(__file__).resolve().parents[1]
DEFAULT = ROOT / "docs" / "performance.svg"


def draw(root: Path, path: Path) -> None:
    """Draw the three panels into an SVG."""
    plt.rcParams.update({"svg.hashsalt": "pyvt", "svg.fonttype": "none", "font.size": 8})
    shares, others, ratios = op_shares(root), other_shares(root), peer_ratios(root)
    rows = max(len(ratios), 2 * len(shares["M=1"]), len(others), 8)
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 1 + 0.2 * rows))
    _draw_shares(left, shares)
    _draw_others(middle, others)
    _draw_ratios(right, ratios)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _draw_shares(axes: Axes, shares: dict[str, list[tuple[str, float]]]) -> None:
    names = [name for name, _ in shares["M=1"]]
    for offset, (rows, label) in zip(
        (-0.2, 0.2), (("M=1", "1 row, of read"), ("M=256", "256 rows, of peak")), strict=True
    ):
        by_name = dict(shares[rows])
        places = [i + offset for i, name in enumerate(names) if name in by_name]
        values = [100 * by_name[name] for name in names if name in by_name]
        axes.barh(places, values, height=0.38, label=label)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("% of the machine's limit")
    axes.set_title("packed_linear by weight format")
    axes.legend(loc="lower right")


def _draw_others(axes: Axes, shares: list[tuple[str, float]]) -> None:
    axes.barh(range(len(shares)), [100 * share for _, share in shares], color="tab:purple")
    axes.set_yticks(range(len(shares)), [name for name, _ in shares])
    axes.axvline(100, color="grey", linewidth=0.8)
    axes.set_xlabel("% of the nearer limit, memory or products")
    axes.set_title("other ops, largest case; over 100: in caches")


def _draw_ratios(axes: Axes, ratios: list[tuple[str, float, float | None]]) -> None:
    names = [name for name, _, _ in ratios]
    axes.barh(range(len(names)), [ratio for _, ratio, _ in ratios], color="tab:green")
    marked = [(i, must) for i, (_, _, must) in enumerate(ratios) if must is not None]
    axes.scatter([must for _, must in marked], [i for i, _ in marked], marker="|", color="black")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("speed of pyvt / best peer (mark: what it must be)")
    axes.set_title("whole models")


if __name__ == "__main__":
    draw(ROOT, Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT)
