"""A run with deterministic kernels has them for as long as it goes on, and its numbers are those of a CPU anyway."""

import os

import pytest
import torch

from burnish.cli import main
from burnish.config import load
from burnish.tasks import assemble
from burnish.tasks.language.vllm import process
from burnish.utils.repeatable import WORKSPACE
from tests.support.runs import metrics_of

SHORT = [
    "vlm_quickstart", "steps=2", "data.train_batch_size=4", "rollout.n=4", "trainer.mini_batch_size=null",
    "optimizer.warmup_steps=0", "validation.before=false", "validation.every=null", "rollout.max_new_tokens=4",
]  # fmt: skip


def settings():
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.utils.deterministic.fill_uninitialized_memory,
    )


@pytest.mark.parametrize("recipe", ["quickstart", "vlm_quickstart"])
def test_a_run_has_deterministic_kernels_until_it_ends(recipe, monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    before = settings()
    assert "VLLM_BATCH_INVARIANT" not in process._environment(None)
    assemble(load(recipe)).close()
    assert WORKSPACE not in os.environ
    assembly = assemble(load(recipe, ["deterministic=true"]))
    assert settings() == (True, True, True, False)
    assert os.environ[WORKSPACE] == ":4096:8"
    assert process._environment(None)["VLLM_BATCH_INVARIANT"] == "1"
    assembly.close()
    assert settings() == before


@pytest.mark.thorough
def test_its_numbers_on_a_cpu_are_the_same(tmp_path):
    found = []
    for name, more in (("plain", []), ("deterministic", ["deterministic=true"])):
        assert main(["train", *SHORT, *more, f"output_dir={tmp_path / name}"]) == 0
        found.append(metrics_of(tmp_path / name))
    assert len(found[0]) > 1
    assert learned(found[0]) == learned(found[1])


def learned(rows):
    return [{name: value for name, value in row.items() if name.startswith(("actor/", "critic/"))} for row in rows]
