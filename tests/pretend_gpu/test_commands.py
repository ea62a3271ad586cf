"""The commands on a pretended GPU: training with validation and checkpoints, resuming, judging, sampling, exporting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from burnish.cli import main
from burnish.config import load
from burnish.config.batches import unsettled
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.pretend_gpu import PretendGpu
from tests.support.pretend_runs import PRECISIONS
from tests.support.runs import last_state, metrics_of
from tests.support.tiny_recipes import flow_recipe, language_recipe, write_language_models, write_recipe

pytestmark = pytest.mark.slow

DRAWING = ("sd3", "flux")
RUNS = {
    "old policy": ("sd3", ["algorithm=diffusion_nft", "algorithm.train_timesteps=2", "ema.decay=0.5"]),
    "all weights": ("flux", ["algorithm=flow_grpo", "model.lora=null", "rollout.embedded_guidance=3"]),
    "critic": ("qwen2_5_vl", ["algorithm=ppo", "algorithm.kl={controller: adaptive, target: 0.1, horizon: 100}"]),
    "average": ("llama", ["algorithm=grpo", "model.lora=null", "ema.decay=0.5", "algorithm.kl={route: reward}"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pretend")
    tiny_pipeline(folder / "sd3", vae=False)
    tiny_flux(folder / "flux")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    write_language_models(folder, ["llama", "qwen2_5_vl"])
    for family, _ in RUNS.values():
        draws = family in DRAWING
        tree = (flow_recipe if draws else language_recipe)(folder, family)
        tree |= {"checkpoint": {"every": 1, "keep_last": 1}, "validation": {"every": 1, "n": 1}}
        tree["rollout"] |= {"n": 2} if draws else {"n": 2, "max_new_tokens": 4}
        write_recipe(folder / f"{family}.yaml", tree)
    return folder


def cells() -> Iterator[Any]:
    """Each half in both precisions, and all of them where there is time."""
    for number, name in enumerate(RUNS):
        for precision in PRECISIONS:
            extra = [] if PRECISIONS[number % 2] == precision else [pytest.mark.thorough]
            yield pytest.param(name, precision, marks=extra, id=f"{name}-{precision}")


@pytest.mark.parametrize(("name", "precision"), cells())
def test_a_run_is_broken_off_resumed_judged_and_exported(
    name: str, precision: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, given = RUNS[name]
    command = ["train", str(folder / f"{family}.yaml"), *given, f"model.dtype={precision}", "forecast=off"]
    with PretendGpu() as gpu:
        assert main([*command, f"output_dir={tmp_path / 'whole'}", "steps=2"]) == 0, capsys.readouterr()
        assert main([*command, f"output_dir={tmp_path / 'run'}", "steps=1"]) == 0, capsys.readouterr()
        assert main([*command, f"output_dir={tmp_path / 'run'}", "steps=2"]) == 0, capsys.readouterr()
        assert main(["eval", str(tmp_path / "run"), "-o", str(tmp_path / "judged")]) == 0, capsys.readouterr()
        if family in DRAWING:
            assert main(["sample", str(tmp_path / "run"), "a cat", "-o", str(tmp_path / "drawn")]) == 0
        else:
            assert main(["sample", str(tmp_path / "run"), "Which?", "-o", str(tmp_path / "said")]) == 0
        assert main(["export", str(tmp_path / "run"), "--output", str(tmp_path / "exported")]) == 0
        assert not gpu.draws
        assert gpu.bytes("to device")
    for run in ("run", "whole"):
        config = load(str(tmp_path / run / "config.yaml"))
        assert not unsettled(config)
        assert config.rollout.batch_size == config.batch_sizes()["rollout.batch_size"].unforeseen
    assert last_state(tmp_path / "run") == last_state(tmp_path / "whole")
    numbers = metrics_of(tmp_path / "run")
    assert numbers[-1] == metrics_of(tmp_path / "whole")[-1]
    # what was saved on the GPU is judged alike without one
    assert main(["eval", str(tmp_path / "run"), "-o", str(tmp_path / "again")]) == 0, capsys.readouterr()
    assert list((tmp_path / "exported").glob("**/*.safetensors"))


def test_a_run_that_cannot_fit_is_refused_before_weights_are_loaded(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forecast of a process of its own is compared with the memory of the GPU that is there."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("weights were loaded")

    command = ["train", str(folder / "llama.yaml"), "algorithm=grpo", f"output_dir={tmp_path / 'run'}"]
    with PretendGpu(), monkeypatch.context() as patched:
        patched.setattr("burnish.tasks.language.assembly.load_language_model", refuse)
        patched.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(total_memory=1 << 16))
        assert main(command) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert "by forecast a process of pool train needs" in said
        assert "set force=true to train all the same" in said
    assert not (tmp_path / "run").exists()
