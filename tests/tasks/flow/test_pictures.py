"""Runs that learn from pictures of the user, alone or beside rewards: whole sessions on the quickstart's model."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from burnish.config import load
from burnish.tasks import assemble
from burnish.types.columns import read
from burnish.utils.errors import ConfigError, UserError
from tests.support.language_runs import saved, trained, weights

PICTURES = "burnish:quickstart/pictures.jsonl"
SMALL = [
    "steps=3", "data.train_batch_size=3", "rollout.num_inference_steps=3", "validation.n=1", "scoring.processes=0",
    "rewards.ocr=null", "rewards.jpeg_compressibility.weight=1", "output_dir=unused",
]  # fmt: skip
SFT = ["algorithm=sft", f"data.train_files={PICTURES}"]
BESIDE = ["algorithm=diffusion_nft", "algorithm.train_timesteps=2", "rollout.n=2",
          f"supervised={{train_files: '{PICTURES}', batch_size: 4}}"]  # fmt: skip


def assembly_of(*overrides):
    config = load("quickstart", [*SMALL, *overrides])
    assembly = assemble(config)
    assembly.check_data()
    assembly.check()
    return assembly


@pytest.mark.parametrize("overrides", [SFT, BESIDE], ids=["sft", "beside"])
def test_a_resumed_run_goes_on_bit_by_bit(overrides):
    whole = assembly_of(*overrides)
    before = weights(whole)
    trained(whole, 1, 1)
    state = saved(whole.state_dict())
    rows = trained(whole, 2, 3)
    assert all("actor/sft_loss" in row for row in rows)
    assert (weights(whole) - before).abs().max() > 0
    resumed = assembly_of(*overrides)
    resumed.load_state_dict(state)
    again = trained(resumed, 2, 3)
    assert torch.equal(weights(resumed), weights(whole))
    assert [row["actor/sft_loss"] for row in again] == [row["actor/sft_loss"] for row in rows]


def test_pictures_beside_rewards_change_the_gradient_by_their_coefficient():
    plain, little, much = (assembly_of(*BESIDE, f"supervised.coef={coef}") for coef in (1e-12, 1e-12, 1.0))
    rows = [trained(assembly, 1, 1)[0] for assembly in (plain, little, much)]
    assert torch.equal(weights(plain), weights(little))
    assert rows[0]["actor/sft_loss"] == rows[2]["actor/sft_loss"]  # the same pictures, noise and times
    assert rows[0]["actor/grad_norm"] != rows[2]["actor/grad_norm"]


@pytest.fixture
def pairs(tmp_path):
    """Pairs of the shipped pictures: of each number, the one drawn right and another number."""
    from burnish.utils.paths import resolve

    lines = [json.loads(line) for line in resolve(PICTURES).read_text().splitlines()[:12:2]]
    records = [
        {"prompt": one["prompt"], "chosen": one["image"], "rejected": other["image"]}
        for one, other in zip(lines, [*lines[1:], lines[0]], strict=True)
    ]
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return path


OFFLINE = ["algorithm=diffusion_dpo", "algorithm.online=false", "algorithm.beta=10", "algorithm.train_timesteps=2"]


def test_stored_latents_and_their_pictures_give_the_same_run(pairs, tmp_path):
    drawn = assembly_of(*OFFLINE, f"data.train_files={pairs}", "data.shuffle=false")
    records = drawn.pictures.records
    given = drawn.finished[0].batch(records, drawn.offline_times, update=1, seed=0)
    file = tmp_path / "pairs.safetensors"
    rows = given.conditioning.rows()
    chosen, rejected = (part.contiguous() for part in given.latents.unbind(1))
    save_file({"chosen": chosen, "rejected": rejected, "tokens": rows.tokens, "pooled": rows.pooled}, file)
    stored = assembly_of(*OFFLINE, f"data.train_files={file}", "data.shuffle=false")
    batch = stored.source.collect(1)
    expected = drawn.source.collect(1)
    assert torch.equal(read(batch.latents), expected.latents)
    assert torch.equal(read(batch.conditioning.rows().tokens), expected.conditioning.rows().tokens)
    metrics = trained(stored, 1, 2)[-1]
    assert metrics["train/pairs"] == 3
    assert "rewards/margins" in metrics


def test_pictures_of_another_size_are_refused_before_weights_load(pairs):
    with pytest.raises(UserError, match=r"pairs.jsonl:1: .* fit=centre_crop"):
        assembly_of(*OFFLINE, f"data.train_files={pairs}", "rollout.height=32")
    cropped = assembly_of(*OFFLINE, f"data.train_files={pairs}", "rollout.width=16", "data.fit=centre_crop")
    assert cropped.source.collect(1).latents.shape[-2:] == (16, 16)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([*SFT, "rollout.n=4"], "rollout.n is given, but sft learns from pictures"),
        ([*SFT, f"supervised={{train_files: '{PICTURES}'}}"], "supervised is given, but sft"),
        (["data.fit=centre_crop"], "data.fit is given, but diffusion_nft learns from prompts"),
        ([*SFT, "data.fit=centre_crop", "rollout.height=null"], "data.fit is centre_crop, but to what size"),
        ([*OFFLINE, "data.train_files=x.safetensors", "data.val_files=null"], "data.val_files is null"),
        (["algorithm=dgpo", "algorithm.train_timesteps=2", "trainer.mini_batch_size=7"], "make it a multiple of"),
        (
            ["algorithm=dgpo", "algorithm.train_timesteps=2", "trainer.micro_batch_size=2"],
            "trainer.micro_batch_size is 2",
        ),
        (["algorithm=awm", "algorithm.time_range=[0.5, 1.0]", "algorithm.train_timesteps=3"], "of which 2 are in"),
    ],
)
def test_contradictions_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        load("quickstart", [*SMALL, *overrides]).check(["rollout.n"] if "rollout.n=4" in overrides else [])


def test_groups_are_counted_as_samples():
    assembly = assembly_of("algorithm=dgpo", "algorithm.train_timesteps=2", "rollout.n=4", "trainer.mini_batch_size=8")
    assert assembly.workers.options.mini_batch_size == 2  # rows, each of four samples
    assert assembly.config.optimizer_steps == 6
    metrics = trained(assembly, 1, 1)[0]
    assert assembly.workers.optimizer_steps == 2
    assert metrics["actor/skipped_updates"] == 0
