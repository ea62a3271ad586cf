"""The table of generators on a chosen dozen: drawn as by diffusers alone, trained, exported, and loaded again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from burnish.models.tiny import ALL, describe
from burnish.models.tiny.build import missing

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import generator_classes
import generator_row
import generator_table
from generator_row import EXACT, RUNS, Row, measure

GRPO, NFT, FULL = RUNS
# packed, joint text, lists of sequences, noise and v-predictions, two experts, first frames, edits, masks
CHOSEN = {
    "flux": GRPO, "sd3": FULL, "qwen-image": NFT, "z-image": GRPO, "sdxl": FULL, "cogvideox": NFT, "wan2.2": GRPO,
    "ltx-i2v": NFT, "flux-kontext": FULL, "flux-inpaint": GRPO, "sana": NFT, "lumina2": GRPO,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_the_chosen_dozen(name, tmp_path):
    row = measure(describe(name), tmp_path / "run", [CHOSEN[name]])
    assert not row.refused
    assert not row.faults
    assert row.runs == {CHOSEN[name]: ""}
    assert row.same <= EXACT
    assert row.latents <= EXACT or row.changed


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", ALL, ids=lambda tiny: tiny.name)
def test_every_row_is_as_it_has_to_be_or_refused(tiny, tmp_path):
    if missing(tiny):
        pytest.skip(f"needs {missing(tiny)}")
    assert not measure(tiny, tmp_path / "run").faults


def row(**values):
    good = {"latents": 0.0, "output": 1e-6, "same": 1e-6, "logprob": 3e-8, "runs": dict.fromkeys(RUNS, ""),
            "lora": 2e-6, "full": 0.0}  # fmt: skip
    return Row(**{"name": "one", "pipeline": "OnePipeline", "makes": "images", **good, **values})


def test_a_row_has_a_fault_where_a_figure_leaves_its_bound():
    assert not row().faults
    assert row(same=2e-3).faults == ["sampler 0.002"]
    assert row(lora=float("nan")).faults == ["adapter nan"]
    assert row(runs={GRPO: "changes vae.x"}, full=float("nan")).faults == [f"{GRPO}: changes vae.x"]
    assert row(failed="IndexError: 3").faults == ["IndexError: 3"]
    assert not row(refused="steps twice").faults


def test_what_updates_may_change():
    import torch

    def problem(changed, lora=True, loss=1.0, norm=1.0):
        before = {name: torch.zeros(2) for name in ("unet.a.lora_A", "unet.a", "vae.b")}
        after = {name: value + (name in changed) for name, value in before.items()}
        return generator_row.problem(
            [{"actor/loss": loss, "actor/grad_norm": norm}], before, after, ["unet"], lora=lora
        )

    assert problem(["unet.a.lora_A"]) == ""
    assert problem(["unet.a.lora_A", "unet.a"]) == "changes unet.a"
    assert problem(["unet.a"], lora=False) == ""
    assert problem(["unet.a", "vae.b"], lora=False) == "changes vae.b"
    assert problem([]) == "changes nothing in unet"
    assert problem(["unet.a.lora_A"], norm=0.0) == "loss 1, gradient norm 0"
    assert problem(["unet.a.lora_A"], loss=float("nan")) == "loss nan, gradient norm 1"


def test_the_page_says_what_is_trained_and_what_is_not():
    text = generator_table.page([
        row(), row(name="two", pipeline="TwoPipeline", changed=("solver",), latents=0.2, left_out=("wide",)),
        row(name="three", pipeline="ThreePipeline", refused="its steps depend on more"),
    ])  # fmt: skip
    assert "**2 classes**" in text
    assert "| Two | two | 2e-1 | 1e-6 | solver | 1e-6 |" in text
    assert "| Three | three | its steps depend on more |" in text
    assert "LTX2ImageToVideo" in text


def test_every_class_of_diffusers_has_one_reason():
    found = generator_classes.groups({tiny.pipeline for tiny in ALL})
    names = [name for some in found.values() for name in some]
    assert len(names) == len(set(names)) > 200
    assert "LTX2ImageToVideo" in found[next(why for why in found if why.startswith("several steps"))]
