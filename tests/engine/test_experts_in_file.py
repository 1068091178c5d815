"""A model whose experts do not fit into memory: they stay in the file, and answers are the same."""

import json
import logging
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyvt.config import engine_config
from pyvt.convert import quantize_model
from pyvt.engine import build, memory_plan
from pyvt.engine.build import build_engine
from pyvt.engine.llm_engine import LLMEngine
from pyvt.engine.memory_plan import Plan, plan
from pyvt.errors import ConfigError
from pyvt.layers.moe import Experts
from pyvt.sampling_params import SamplingParams
from pyvt.tensor.packed_tensor import PackedTensor
from pyvt.tensor.quant_tensor import QuantTensor
from pyvt.testing import shape_models
from pyvt.testing.checkpoints import write_safetensors
from pyvt.testing.model_cases import fused_experts
from pyvt.testing.shape_models import ShapeModel
from pyvt.weights.resolve import open_model
from tests.convert.tiny_source import bpe_json, tiny_case, write_source

SETTINGS: dict[str, Any] = {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid in Q4_0, most of whose bytes are experts."""
    folder = tmp_path_factory.mktemp("experts")
    wide = {"num_experts": 16, "moe_intermediate_size": 512}
    source = write_source(folder / "model", "qwen3_5_moe", bpe_json("qwen35"), **wide)
    quantize_model(source, folder / "model.gguf", "q4_0")
    return folder / "model.gguf"


def planned(model: Path, free_mib: float, **settings: Any) -> Plan:
    files = open_model(model)
    try:
        config = engine_config(str(model), **(SETTINGS | settings))
        return plan(config, files, free_bytes=int(free_mib * 2**20))
    finally:
        files.close()


def answers(engine: LLMEngine) -> list[tuple[int, ...]]:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    rng = np.random.default_rng(0)
    for i in range(2):
        engine.add_request(str(i), rng.integers(0, 256, 20 + i).tolist(), params)
    done = {}
    while engine.has_unfinished_requests:
        done |= {o.request_id: o for o in engine.step()}
    return [tuple(done[str(i)].outputs[0].token_ids) for i in range(2)]


def experts_of(engine: LLMEngine) -> list[Any]:
    modules = engine.core.runner.graphs.model.modules()  # type: ignore[attr-defined]
    layers = [module for module in modules if isinstance(module, Experts)]
    return [
        part.data for layer in layers for part in (layer.gate_proj, layer.up_proj, layer.down_proj)
    ]


def test_experts_stay_in_the_file_where_they_do_not_fit(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roomy = planned(model, 4096)
    need_mib = (roomy.weight_bytes + roomy.activation_bytes) / 2**20
    with caplog.at_level(logging.WARNING):
        tight = planned(model, need_mib)

    assert roomy.file_bytes == 0
    assert tight.file_bytes > roomy.weight_bytes / 2
    assert tight.weight_bytes == roomy.weight_bytes - tight.file_bytes
    assert tight.left_bytes >= 0
    assert "of experts stay in its file and are read at the speed of the disk" in caplog.text
    assert f"experts_in_file={tight.file_bytes / 2**20:.0f}MiB" in tight.summary()


def test_a_model_that_does_not_fit_without_its_experts_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="MiB too little"):
        planned(model, 8)
    with pytest.raises(ConfigError, match="MiB too little"):
        planned(model, planned(model, 4096).weight_bytes / 2**20, experts="memory")


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_answers_are_those_of_experts_in_memory(
    model: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    settings = SETTINGS | {"backend": backend, "expand": "never"}
    in_memory = build_engine(engine_config(str(model), **settings))
    roomy = planned(model, 4096)
    free = roomy.weight_bytes + roomy.activation_bytes
    for module in (memory_plan, build):
        monkeypatch.setattr(module, "available_host_bytes", lambda: free)
    in_file = build_engine(engine_config(str(model), **settings))

    assert answers(in_file) == answers(in_memory)
    assert all(isinstance(stack, QuantTensor) for stack in experts_of(in_file))
    kind = PackedTensor if backend == "cpu" else QuantTensor
    assert all(isinstance(stack, kind) for stack in experts_of(in_memory))
    assert len(experts_of(in_file)) == 12


def test_experts_that_are_no_stacks_cannot_be_wanted_in_the_file(tmp_path: Path) -> None:
    single = write_source(tmp_path / "single", "qwen3_moe", bpe_json())
    dense = write_source(tmp_path / "dense", "qwen3", bpe_json())

    for path in (single, dense):
        with pytest.raises(ConfigError, match=r"device\.experts: expected stacks of experts"):
            planned(path, 4096, experts="file")


def test_stacks_that_are_laid_out_anew_count_as_memory(tmp_path: Path) -> None:
    """Blocks of FP8 get their scales beside them at load, so that they lie in no file."""
    case = tiny_case("qwen3_5_moe", moe_intermediate_size=256)
    tensors: dict[str, Any] = {}
    for name, array in fused_experts(case.weights()).items():
        tensors[name] = array
        if ".mlp.experts." in name:
            tensors[name] = np.zeros(array.shape, ml_dtypes.float8_e4m3fn)
            size = (array.shape[0], *(rows // 128 for rows in array.shape[1:]))
            tensors[name + "_scale_inv"] = np.ones(size, np.float32)
    config = case.config | {"quantization_config": {"quant_method": "fp8"}}
    path = write_safetensors(tmp_path, tensors, config)

    assert planned(path, 4096).file_bytes == 0
    with pytest.raises(ConfigError, match="expected stacks of experts"):
        planned(path, 4096, experts="file")


def test_an_unknown_place_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"device\.experts: expected one of auto, memory, file"):
        engine_config("m", experts="disk")


LIMITED_RUN = """
import logging, resource, sys
from pathlib import Path
from pyvt.errors import ConfigError
from pyvt.testing.bench_engine import EngineBench

logging.basicConfig(level=logging.WARNING)
path, room, place = sys.argv[1], int(sys.argv[2]), sys.argv[3]
status = dict(l.split(":", 1) for l in Path("/proc/self/status").read_text().splitlines())
used = int(status["VmData"].split()[0]) * 1024
resource.setrlimit(resource.RLIMIT_DATA, (used + room, used + room))
settings = {"max_model_len": 64, "max_num_batched_tokens": 64, "max_num_seqs": 1}
try:
    bench = EngineBench(path, experts=place, threads=2, num_blocks="auto", **settings)
except ConfigError as error:
    sys.exit(str(error))
print(bench.first_token(list(range(100, 120)), 6)[1])
"""


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of 230 MB, nearly all of it experts, which are all alike."""
    wide = {"num_experts": 128, "moe_intermediate_size": 512, "hidden_size": 1024}
    path = tmp_path_factory.mktemp("large") / "model.gguf"
    alike = cache(shape_models.random_tensor)

    def tensor(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        return alike("expert" if ".experts." in name else name, shape, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(shape_models.SHAPES, "large", shape_models.SHAPES["tiny-moe"] | wide)
        patch.setattr(shape_models, "random_tensor", tensor)
        shape_models.write_shape_gguf(path, ShapeModel.named("shape:large:q4_k_m"))
    return path


def limited_run(model: Path, room: int, place: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED_RUN, str(model), str(room), place]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the limit")
def test_a_file_larger_than_the_memory_allowed_decodes_and_says_so(large_model: Path) -> None:
    room = large_model.stat().st_size * 2 // 3

    in_file = limited_run(large_model, room, "auto")
    refused = limited_run(large_model, room, "memory")

    assert in_file.returncode == 0, in_file.stderr
    assert "of experts stay in its file and are read at the speed of the disk" in in_file.stderr
    assert len(json.loads(in_file.stdout)) == 6
    assert "MiB too little" in refused.stderr.splitlines()[-1]
