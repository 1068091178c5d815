"""Write the logits of llama.cpp for tiny GGUF models: ``goldens/models/<case>/llama.npz``.

    python parity/dump_llama.py LLAMA_PYTHON CASE ...

``LLAMA_PYTHON`` is a Python that has llama-cpp-python. The file is what ``write_case`` makes of the
case in f32, with the name of no tokenizer. It gets ``<prompt>.f32`` ``[T, V]`` for the prompt
``long``, ``draft.f32`` ``[T - 1, V]`` where the model has a draft head, which is given our hidden
states of that prompt, and the version of the package.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pyvt.config.model import ModelConfig
from pyvt.testing.model_cases import MODEL_CASES_BY_NAME, ModelCase
from pyvt.testing.model_runs import all_hidden, load_case, write_case

HERE = Path(__file__).parent
PROMPT = "long"
_VERSION = "import importlib.metadata as m; print(m.version('llama-cpp-python'))"


def dump(case: ModelCase, llama_python: str) -> np.ndarray:
    """Return the logits of a case and write them."""
    ids, positions = case.prompts()[PROMPT]
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = write_case(case, folder, kind="gguf", has_no_tokenizer=True)
        np.save(folder / "ids.npy", ids)
        logits = _run(llama_python, "llama_logits.py", path, folder, "ids.npy")
        arrays = {f"{PROMPT}.f32": logits}
        if ModelConfig.from_hf(case.config).num_mtp_layers:
            (hidden,) = all_hidden(load_case(path).model, [(ids[:-1], positions[:-1])])
            np.save(folder / "hidden.npy", hidden)
            names = "ids.npy", "hidden.npy"
            arrays["draft.f32"] = _run(llama_python, "llama_drafts.py", path, folder, *names)
    run = subprocess.run([llama_python, "-c", _VERSION], check=True, capture_output=True, text=True)
    target = HERE / "goldens" / "models" / case.name / "llama.npz"
    np.savez_compressed(target, allow_pickle=False, **arrays, version=run.stdout.strip())
    return logits


def _run(llama_python: str, script: str, path: Path, folder: Path, *names: str) -> np.ndarray:
    """Return what a script writes of a model and of arrays in a folder."""
    out = folder / "out.npy"
    command = [llama_python, HERE / script, path, *(folder / name for name in names), out]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    array: np.ndarray = np.load(out)
    return array


def main(llama_python: str, names: list[str]) -> None:
    """Dump the cases of these names."""
    for name in names:
        logits = dump(MODEL_CASES_BY_NAME[name], llama_python)
        golden = np.load(HERE / "goldens" / "models" / name / "logits.npz")[f"{PROMPT}.f32"]
        print(f"{name}: against transformers {np.abs(logits - golden).max():.2g}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
