"""The tables of models: drawn or sampled, trained, exported and loaded again as their own classes compute."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from burnish.models.tiny import ALL, describe, describe_language
from burnish.models.tiny.build import missing
from burnish.models.tiny.language import LANGUAGE

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import generator_classes
import generator_row
import generator_table
import language_row
import language_table
from generator_row import EXACT, RUNS

GRPO, NFT, FULL = RUNS
# packed, joint text, lists of sequences, noise and v-predictions, two experts, edits
DRAWN = {
    "flux": GRPO, "sd3": FULL, "qwen-image": NFT, "z-image": GRPO, "sdxl": FULL, "cogvideox": NFT, "wan2.2": GRPO,
    "flux-kontext": FULL, "sana": NFT, "lumina2": GRPO,
}  # fmt: skip
# windows, recurrent states, tiles, patches, chunks, a prefix that sees all, experts, softcaps, scaled heads, sound
ANSWERED = {
    "gemma3": "ppo", "qwen3_5": "grpo", "internvl": "ppo", "llava_onevision": "grpo", "idefics3": "ppo",
    "paligemma": "grpo", "mistral3": "grpo", "gpt_oss": "ppo", "granite": "ppo", "qwen2_5_omni_thinker": "grpo",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_ten_generators(name, tmp_path, monkeypatch):
    monkeypatch.setitem(RUNS, DRAWN[name], [option for option in RUNS[DRAWN[name]] if "steps=" not in option[:6]])
    monkeypatch.setattr(generator_row, "STEPS", 6)
    row = generator_row.measure(describe(name), tmp_path / "run", [DRAWN[name]])
    assert not row.refused
    assert not row.faults
    assert row.runs == {DRAWN[name]: ""}
    assert row.same <= EXACT
    assert row.latents <= EXACT or row.changed


@pytest.mark.slow
@pytest.mark.parametrize("name", ANSWERED)
def test_ten_language_models(name, tmp_path, monkeypatch):
    monkeypatch.setattr(language_row, "UPDATES", 1)
    monkeypatch.setattr(language_row, "OVERRIDES", [*language_row.OVERRIDES[:-2], "steps=1", "rewards.exact=null"])
    row = language_row.measure(describe_language(name), tmp_path, [ANSWERED[name]])
    assert not row.refused
    assert not row.faults
    assert getattr(row, ANSWERED[name]) == 1
    assert (row.adapter if ANSWERED[name] == "grpo" else row.weights) <= language_row.EXACT


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", ALL, ids=lambda tiny: tiny.name)
def test_every_generator_is_as_it_has_to_be_or_refused(tiny, tmp_path):
    if missing(tiny):
        pytest.skip(f"needs {missing(tiny)}")
    assert not generator_row.measure(tiny, tmp_path / "run").faults


@pytest.mark.thorough
@pytest.mark.parametrize("tiny", LANGUAGE, ids=lambda tiny: tiny.name)
def test_every_language_model_is_without_fault(tiny, tmp_path):
    row = language_row.measure(tiny, tmp_path)
    assert not row.faults
    assert not row.refused


def drawn(**values):
    good = {"latents": 0.0, "output": 1e-6, "same": 1e-6, "logprob": 3e-8, "runs": dict.fromkeys(RUNS, ""),
            "lora": 2e-6, "full": 0.0}  # fmt: skip
    return generator_row.Row(**{"name": "one", "pipeline": "OnePipeline", "makes": "images", **good, **values})


def answered(**values):
    good = {"tier": "3f", "batch": 1e-6, "sampler": 2e-6, "greedy": "9/9", "shared": 0.0, "grpo": 5, "ppo": 5}
    return language_row.Row(**{"name": "one", "model": "OneForCausalLM", "reads": [], **good, **values})


def test_a_row_has_a_fault_where_a_figure_leaves_its_bound():
    import torch

    assert not drawn().faults
    assert drawn(same=2e-3).faults == ["sampler 0.002"]
    assert drawn(lora=float("nan")).faults == ["adapter nan"]
    assert drawn(runs={GRPO: "changes vae.x"}, full=float("nan")).faults == [f"{GRPO}: changes vae.x"]
    assert drawn(failed="IndexError: 3").faults == ["IndexError: 3"]
    assert not drawn(refused="steps twice").faults

    def problem(changed, lora=True, norm=1.0):
        before = {name: torch.zeros(2) for name in ("unet.a.lora_A", "unet.a", "vae.b")}
        after = {name: value + (name in changed) for name, value in before.items()}
        metrics = [{"actor/loss": 1.0, "actor/grad_norm": norm}]
        return generator_row.problem(metrics, before, after, ["unet"], lora=lora)

    assert problem(["unet.a.lora_A"]) == problem(["unet.a"], lora=False) == ""
    assert problem(["unet.a.lora_A", "unet.a"]) == "changes unet.a"
    assert problem(["unet.a", "vae.b"], lora=False) == "changes vae.b"
    assert problem([]) == "changes nothing in unet"
    assert problem(["unet.a.lora_A"], norm=0.0) == "loss 1, gradient norm 0"
    for wrong, said in (({"batch": 0.1}, "0.1 nats"), ({"greedy": "8/9"}, "8 of 9"), ({"ppo": 4}, "4 of 5")):
        row = answered(**wrong)
        language_row.judge(row)
        assert [said in fault for fault in row.faults] == [True]


def test_the_pages_say_what_is_trained_and_what_is_not():
    text = generator_table.page([
        drawn(), drawn(name="two", pipeline="TwoPipeline", changed=("solver",), latents=0.2, left_out=("wide",)),
        drawn(name="three", pipeline="ThreePipeline", refused="its steps depend on more"),
    ])  # fmt: skip
    assert "**2 classes**" in text
    assert "| Two | two | 2e-1 | 1e-6 | solver | 1e-6 |" in text
    assert "| Three | three | its steps depend on more |" in text
    text = language_table.page([
        answered(), answered(name="two", model="TwoForConditionalGeneration", tier="1a", reads=["image"], turns=1e-6),
        answered(name="deaf", model="Deaf", refused="its cache is wrong"),
    ])  # fmt: skip
    assert "**2\nclasses**" in text
    assert "| Two | two | image | 1, anew |" in text
    assert "| Deaf | deaf | its cache is wrong |" in text
    found = generator_classes.groups({tiny.pipeline for tiny in ALL})
    names = [name for some in found.values() for name in some]
    assert len(names) == len(set(names)) > 200, "every class of diffusers has one reason"
