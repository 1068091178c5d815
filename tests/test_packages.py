"""The packages, built and installed without a network into a fresh environment and used there.

Dependencies are those of this environment, on the path of the fresh one behind its own packages.
"""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.tiny_files import write_talker

# What the dependencies leave of a download of 60 MB.
MAX_WHEEL_MB = 24
QUESTION = ("--raw", "--ignore-eos", "--max-tokens", "4", "--temperature", "0", "Hello")


def surroundings() -> dict[str, str]:
    """Return the variables of this process, without other places of modules."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@dataclass(frozen=True, slots=True)
class Environment:
    """A fresh environment with pyvt."""

    folder: Path
    home: Path

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """Run the pyvt command that was installed."""
        return subprocess.run(
            [str(self.folder / "bin" / "pyvt"), *args],
            cwd=self.folder,
            env={**surroundings(), "PYVT_HOME": str(self.home)},
            capture_output=True,
            text=True,
        )

    @property
    def package(self) -> Path:
        """The folder of the installed package."""
        (folder,) = self.folder.glob("lib/python*/site-packages/pyvt")
        return folder


def run_tool(*args: str, environment: Mapping[str, str] | None = None) -> None:
    result = subprocess.run(
        [sys.executable, "-m", *args], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr


def build(kind: str, source: Path, folder: Path) -> Path:
    """Return the package that ``python -m build`` makes."""
    run_tool("build", f"--{kind}", "--no-isolation", "--outdir", str(folder), str(source))
    (package,) = folder.iterdir()
    return package


def install(package: Path, folder: Path, environment: Mapping[str, str]) -> Environment:
    """Install a package with this environment's pip into a fresh environment."""
    run_tool("venv", "--without-pip", str(folder))
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    options = ("--no-index", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    run_tool(
        *("pip", "--python", str(folder / "bin" / "python"), "install", *options, str(package)),
        environment=environment,
    )
    return Environment(folder, folder / "home")


def paths_without_compiler(folder: Path) -> str:
    """Return a PATH that has the build's tools and no compiler."""
    folder.mkdir()
    for tool in ("cmake", "ninja"):
        found = shutil.which(tool, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        assert found is not None, f"{tool} is a package of the development environment"
        (folder / tool).symlink_to(found)
    return str(folder)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory, qwen3_tokenizer_dir: Path) -> str:
    """The folder of a tiny Qwen3 that talks nonsense."""
    return str(write_talker(tmp_path_factory.mktemp("talker"), qwen3_tokenizer_dir))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory, repo: Path) -> Path:
    """The source package."""
    return build("sdist", repo, tmp_path_factory.mktemp("sdist"))


def answer(environment: Environment, talker: str, backend: str) -> subprocess.CompletedProcess[str]:
    result = environment.run("generate", "-m", talker, "--backend", backend, *QUESTION)
    assert result.returncode == 0, result.stderr
    return result


def test_sdist_without_a_compiler_answers_with_numpy_and_says_so(
    sdist: Path, talker: str, tmp_path: Path
) -> None:
    variables = {name: value for name, value in surroundings().items() if name not in ("CC", "CXX")}
    variables["PATH"] = paths_without_compiler(tmp_path / "bin")

    environment = install(sdist, tmp_path / "environment", variables)

    built = json.loads((environment.package / "backends" / "build_info.json").read_text())["cpu"]
    assert (built["is_built"], built["reason"]) == (False, "no C++ compiler was found")
    assert list(environment.package.rglob("*.so")) == []
    first = answer(environment, talker, "numpy")
    assert first.stdout
    assert "backend cpu: not built at install: no C++ compiler was found" in first.stderr
    refused = environment.run("generate", "-m", talker, "--backend", "cpu", *QUESTION)
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler is here")
def test_wheel_of_the_sdist_answers_the_same_on_both_backends(
    sdist: Path, talker: str, tmp_path: Path
) -> None:
    shutil.unpack_archive(sdist, tmp_path / "source")
    (source,) = (tmp_path / "source").iterdir()
    wheel = build("wheel", source, tmp_path / "wheel")

    environment = install(wheel, tmp_path / "environment", os.environ)

    installed = [path for path in environment.package.rglob("*") if path.is_file()]
    wheel_mb = wheel.stat().st_size / 2**20
    print(f"wheel {wheel_mb:.1f} MB, of {sum(f.stat().st_size for f in installed) / 2**20:.1f} MB")
    assert wheel_mb < MAX_WHEEL_MB
    assert (environment.package / "include" / "pyvt" / "c_api.h").is_file()
    assert (environment.package / "backends" / "cpu" / "libpyvt_ops.so").is_file()
    listing = environment.run("inspect", "--ops")
    assert listing.returncode == 0, listing.stderr
    assert "backend cpu: built with" in listing.stderr
    answers = {answer(environment, talker, backend).stdout for backend in ("cpu", "numpy")}
    assert len(answers) == 1
