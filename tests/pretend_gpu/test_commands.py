"""The commands on a pretended GPU: training with validation and checkpoints, resuming, judging, sampling, exporting."""

from pathlib import Path

import pytest
import torch
import yaml

from tests.support.pretend_gpu import PretendGpu
from tests.support.tiny_run import TinyRun, burnish

pytestmark = pytest.mark.slow
RUNS = yaml.safe_load(Path(__file__).with_name("runs.yaml").read_text())
OFTEN = [("average", "bfloat16")]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        pytest.param(name, precision, marks=() if (name, precision) in OFTEN else pytest.mark.thorough)
        for name in RUNS
        for precision in ("float32", "bfloat16")
    ],
)
def test_a_run_is_broken_off_resumed_judged_and_exported(
    name: str, precision: str, files: Path, tmp_path: Path
) -> None:
    half, model, options = RUNS[name]
    given = [*options, "rollout.n=2", "checkpoint.every=1", "checkpoint.keep_last=1", "validation.every=1"]
    given += [f"model.dtype={precision}", "model.device=auto", "forecast=off"]
    whole, run = (TinyRun(files, half, model, *given, name=f"{name}-{part}") for part in ("whole", "run"))
    with PretendGpu() as gpu:
        whole.train("steps=2")
        run.train("steps=1")
        run.train("steps=2")
        burnish("eval", run.output, "-o", tmp_path / "judged")
        burnish("sample", run.output, "a cat", "-o", tmp_path / "sampled")
        burnish("export", run.output, "--output", tmp_path / "exported")
        assert not gpu.draws
        assert gpu.bytes("to device")
    assert run.tensors.keys() == whole.tensors.keys()
    assert all(torch.equal(value, whole.tensors[key]) for key, value in run.tensors.items())
    assert run.metrics[-1] == whole.metrics[-1]
    burnish("eval", run.output, "-o", tmp_path / "again")  # what was saved on the GPU is judged without one
    assert list((tmp_path / "exported").glob("**/*.safetensors"))
