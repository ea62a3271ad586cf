"""A run whose machine is lost goes on from its copies as it would have gone on, and leaves weights of every save."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

from burnish.cli import main
from tests.support.equality import same
from tests.support.runs import metrics_of

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SMALL = [
    "quickstart", "checkpoint.every=1", "validation.every=0", "validation.max_prompts=2", "validation.n=1",
    "scoring.processes=0", "validation.reference_guidance=null", "data.train_batch_size=2", "rollout.n=2",
    "optimizer.schedule=constant", "alarms=null",
]  # fmt: skip


def test_a_lost_machine_costs_nothing_that_was_copied(tmp_path):
    here, there, other = tmp_path / "here", f"file://{tmp_path}/there", tmp_path / "other"
    copies = [f"checkpoint.copy_to={there}", "checkpoint.copy_keep=1"]
    begin = [*copies, "checkpoint.export=merged", f"resume={there}"]
    assert main(["train", *SMALL, *begin, f"output_dir={here}", "steps=2"]) == 0
    assert [path.name for path in (tmp_path / "there" / "checkpoints").iterdir()] == ["00000002"]
    assert sorted(path.name for path in (here / "exported").iterdir()) == ["00000001", "00000002"]
    assert main(["export", str(here), "--output", str(tmp_path / "by_hand")]) == 0
    name = "transformer/diffusion_pytorch_model.safetensors"
    same(load_file(here / "exported" / "00000002" / name), load_file(tmp_path / "by_hand" / name))

    assert main(["train", *SMALL, *copies, f"resume={there}", f"output_dir={other}", "steps=3"]) == 0
    assert main(["train", *SMALL, f"output_dir={here}", "steps=3"]) == 0
    assert metrics_of(other) == metrics_of(here)
    assert (other / "checkpoints" / "00000003" / "manifest.json").read_bytes() == (
        here / "checkpoints" / "00000003" / "manifest.json"
    ).read_bytes()
