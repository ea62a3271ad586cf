"""Runs on data of one's own: lists in shares, code, a curriculum, passes over it, pictures that begin, and sounds."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from burnish.algorithms.flow.awm import AWM
from burnish.algorithms.flow.base import Needs, Recording
from burnish.algorithms.flow.crd import CRD
from burnish.algorithms.flow.dgpo import DGPO
from burnish.algorithms.flow.diffusion_dpo import DiffusionDPO
from burnish.algorithms.flow.diffusion_nft import DiffusionNFT
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.flow.sft import SFT
from burnish.config import load
from burnish.config.run_folder import RunFolder
from burnish.flow.windows import Window
from burnish.models.flow.loading import load_model
from burnish.options.flow import LoraOptions, ModelOptions, RolloutOptions
from burnish.report.samples import read_samples
from burnish.tasks.flow.engine import FlowEngine, FlowJob
from burnish.tasks.flow.roles import FlowRoles
from burnish.types.clips import Clip
from burnish.types.media import Media
from burnish.types.rollout import Denoising, Prompt, Scored, Scores
from tests.support.runs import last_state
from tests.support.tiny_run import TinyRun, burnish

CODE = """
def sums():
    for i in range(5):
        yield {"prompt": f"{i} + 1?", "answer": i + 1}


def worst_first(records, history, update, count, seed):
    drawn = sorted(range(len(records)), key=lambda row: (history[row][-1] if history[row] else -1.0, row))
    with open(__file__ + ".log", "a") as log:
        print(update, drawn[:count], sum(map(len, history)), file=log)
    return drawn[:count]
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Data by code and in a file."""
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "letters.jsonl").write_text("".join(json.dumps({"prompt": letter}) + "\n" for letter in "abc"))
    return tmp_path


def on_lists(files: Path, place: Path, name: str, *more: str) -> TinyRun:
    """A run on eight records of two lists."""
    run = TinyRun(
        files, "language", "llama", "algorithm=grpo", "checkpoint.every=1", "validation.every=1",
        "validation.max_prompts=1",
        f"data.train_files=['{place / 'mine.py'}:sums', {place / 'letters.jsonl'}]",
        f"data.val_files={place / 'letters.jsonl'}", *more, name=f"lists/{name}",
    )  # fmt: skip
    tree = json.loads(run.recipe.read_text())
    del tree["steps"]
    run.recipe.write_text(json.dumps(tree))
    return run


def test_a_run_of_epochs_has_as_many_updates_and_can_be_made_longer(files, place):
    run = on_lists(files, place, "epochs")
    run.train("data.epochs=0.5", "data.mix=[3, 1]")
    assert len(run.metrics) == 3, "a validation before, and half of 8 records by twos"
    assert "steps: 2" in (run.output / "config.yaml").read_text()
    run.train("data.epochs=1", "data.mix=[3, 1]")
    assert len(run.metrics) == 5
    straight = on_lists(files, place, "straight")
    straight.train("steps=4", "data.mix=[3, 1]")
    assert last_state(straight.output) == last_state(run.output)
    said = run.train("data.epochs=2", "data.mix=[1, 1]", status=2).message
    assert "data.mix: [3.0, 1.0] -> [1.0, 1.0]" in said


def test_a_curriculum_resumes_where_it_was(files, place):
    sampler, log = f"data.sampler={place / 'mine.py'}:worst_first", place / "mine.py.log"
    whole = on_lists(files, place, "whole", sampler)
    whole.train("steps=4")
    chosen = [line for line in log.read_text().splitlines() if not line.startswith("0 ")]
    log.unlink()
    parts = on_lists(files, place, "parts", sampler)
    for steps in (2, 3, 4):
        parts.train(f"steps={steps}")
    assert set(log.read_text().splitlines()) == set(chosen)
    assert parts.metrics == whole.metrics
    assert last_state(parts.output) == last_state(whole.output)
    assert [int(line.rsplit(" ", 1)[1]) for line in chosen][-1] == 6, "the rewards of two prompts in each update"
    wrong = on_lists(files, place, "wrong", f"data.sampler={place / 'mine.py'}:sums")
    said = wrong.train("steps=1", status=2)
    assert "function(records=..., history=..." in said.message
    assert "Loading the model" not in said.err


def test_the_command_line_decides_between_steps_and_epochs(files, place, monkeypatch):
    recipe = str(on_lists(files, place, "recipe").recipe)
    given = ["algorithm=grpo", f"data.train_files=['{place / 'mine.py'}:sums', {place / 'letters.jsonl'}]"]
    upper, above = place / "upper.yaml", place / "above.yaml"
    upper.write_text(json.dumps({"extends": recipe, "algorithm": "grpo", "data": {"epochs": 3}}))
    above.write_text(json.dumps({"extends": str(upper), "steps": 5}))
    assert load(str(upper)).data.epochs == 3
    assert load(str(upper), ["steps=7"]).data.epochs is None
    assert (load(str(above)).steps, load(str(above)).data.epochs) == (5, None)
    monkeypatch.setattr("burnish.commands.epochs.MOST", 10)
    for more, said in (
        (["steps=7", "data.epochs=2"], "steps and data.epochs are both given"),
        (["data.mix=[1,2,3]"], "data.mix has 3 weights"),
        (["data.mix=[1,2]", "data.sampler=a:b"], "mix and sampler"),
        (["data.mix=[1,0]"], "data.mix.1 is 0"),
        (["data.epochs=3"], "data.epochs is 3"),  # more than a run may have
    ):
        assert said in burnish("train", recipe, *given, *more, f"output_dir={place / 'run'}", status=2).message


def nearness(samples: list[Any], prompts: list[Any]) -> list[float]:
    """How near the mean colour of a sample, or of a clip's last frame, is to that of its prompt's picture."""
    found = []
    for sample, prompt in zip(samples, prompts, strict=True):
        pixels = sample.frames[-1] if isinstance(sample, Clip) else sample
        begun = np.asarray(prompt.images[0].image())
        found.append(1 - float(np.abs(pixels.mean((0, 1)) - begun.mean((0, 1))).mean()) / 255)
    return found


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Two prompts with pictures of their own."""
    for name, shade in (("dark", 20), ("light", 230)):
        Image.fromarray(np.full((32, 32, 3), shade, np.uint8)).save(tmp_path / f"{name}.png")
    lines = [json.dumps({"prompt": "make it red", "image": f"{name}.png"}) for name in ("dark", "light")]
    (tmp_path / "records.jsonl").write_text("\n".join(lines))
    return tmp_path / "records.jsonl"


BEGUN = [
    "algorithm=diffusion_nft", "algorithm.train_timesteps=2", "rewards.brightness=null", "steps=1",
    "rewards.near={name: function, path: 'tests.system.test_data:nearness'}", "rollout.num_inference_steps=2",
    "rollout.height=32", "rollout.width=32", "rollout.max_sequence_length=16", "rollout.n=2", "validation.every=1",
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("flux-kontext", "png", ["rollout.call={_auto_resize: false}"]),
        pytest.param("wan2.1-i2v", "mp4", ["rollout.num_frames=5"], marks=pytest.mark.thorough),
    ],
    ids=["editing", "video"],
)
def test_samples_begin_from_the_pictures_of_their_prompts(files, records, name, kind, more):
    run = TinyRun(files, "generators", name, *BEGUN, f"data.train_files={records}", *more, name=f"begun/{kind}")
    run.train()
    folder = RunFolder(run.output)
    assert folder.validations() == [0, 1]
    for update in (0, 1):
        samples = read_samples(folder.validation(update)).values()
        assert [sample.picture.suffix for sample in samples] == [f".{kind}"] * 2
        assert [[path.name for path in one.shown] for one in samples] == [["000-input-0.png"], ["001-input-0.png"]]
        for sample, begun in zip(samples, (20, 230), strict=True):
            assert (np.asarray(Image.open(sample.shown[0])) == begun).all()
            media = Media.file(sample.picture, "image" if kind == "png" else "video")
            last = np.asarray(media.image()) if kind == "png" else media.video()[0][-1]
            expected = 1 - np.abs(last.mean((0, 1)) - begun).mean() / 255
            assert sample.reward == pytest.approx(expected, abs=1e-6 if kind == "png" else 0.02)
    assert "is what the samples begin from" in folder.report.read_text()
    blind = TinyRun(
        files, "generators", "sd3", "algorithm=flow_grpo", f"data.train_files={records}", name="begun/blind"
    )
    said = blind.train(status=2).message
    assert "records.jsonl:1" in said
    assert "StableDiffusion3Pipeline" in said


@pytest.mark.parametrize(
    "learn", [
        FlowGRPO(kl_coef=0.1), DiffusionNFT(train_timesteps=2), AWM(kl_coef=0.1, train_timesteps=2),
        DGPO(kl_coef=0.1, train_timesteps=2), CRD(kl_coef=0.1, train_timesteps=2),
        DiffusionDPO(beta=10.0, sft_coef=0.1), SFT(online=True),
    ],
    ids=lambda learn: learn.name,
)  # fmt: skip
def test_a_frame_that_is_given_changes_no_gradient(clips, learn):
    roles, scored = clips
    trace = scored.trace
    assert trace.share.tolist() == [0.5] * 4, "one of two frames of latents is given"
    changed = replace(scored, trace=replace(trace, latents=torch.where(trace.noised, trace.latents, 100.0)))

    def gradient(scored: Scored) -> torch.Tensor:
        weights = roles.parameters()
        for value in weights.values():
            value.grad = None
        for part in learn.micro_batches(learn.credit(learn.annotate(scored, roles))[0], 100):
            learn.loss(part, roles).total.backward()
        return torch.cat([value.grad.flatten() for value in weights.values()])

    found = gradient(scored)
    assert found.abs().max() > 0
    assert torch.equal(gradient(changed), found)
    if learn.name == "diffusion_nft":
        (part,) = learn.micro_batches(learn.credit(changed)[0], 100)
        given = ~trace.noised[:1].expand_as(part.noisy)
        assert (part.noisy.masked_select(given) == 100.0).all()
        assert (part.target.masked_select(given) == 0.0).all()


@pytest.fixture(scope="module")
def clips(files: Path) -> tuple[FlowRoles, Scored]:
    """Roles of a tiny image-to-video model, and clips that it has drawn from two pictures."""
    if not (files / "wan2.2-5b-i2v").exists():
        burnish("tiny", "wan2.2-5b-i2v", files / "wan2.2-5b-i2v")
    rollout = RolloutOptions(
        batch_size=96, n=2, num_inference_steps=2, guidance_scale=1.0, max_sequence_length=16, height=32, width=32,
        num_frames=5,
    )  # fmt: skip
    lora, recording = LoraOptions(rank=2), Recording("sde", 0.7, Window())
    roles = FlowRoles(
        load_model(ModelOptions(path=str(files / "wan2.2-5b-i2v"), lora=lora, dtype="float32"), rollout),
        Needs(recording=recording, reference=True, lagged=("old",)), lora, guidance=1.0, micro_batch_size=100,
        on_policy=True, seed=0,
    )  # fmt: skip
    pictures = [Media.array(np.full((32, 32, 3), shade, np.uint8)) for shade in (30, 220)]
    prompts = [Prompt(text="it moves", images=(picture,)) for picture in pictures]
    job = FlowJob.groups(prompts, 2, purpose="rollout", update=1, recording=recording)
    trace = Denoising.cat([trace for _, trace, _ in FlowEngine(roles, rollout, seed=0).sample(job)])
    reward, none = torch.arange(4.0), torch.zeros(4, dtype=torch.bool)
    scores = Scores(reward=reward, missing=none, components=reward[:, None], names=("r",), notes=[""] * 4)
    return roles, Scored(
        prompts=job.prompts, group=job.group, sample=job.sample, trace=trace, scores=scores, update=1, version=0, seed=0
    )


def test_validation_keeps_sounds_the_report_plays_them_and_a_question_brings_one(files, tmp_path):
    pytest.importorskip("av")
    from tests.support.sounds import sound_file, tone

    lines = [{"prompt": "What?", "answer": "0"}]
    for number, kind in enumerate(("wav", "flac", "mp3"), 1):
        (tmp_path / f"{number}.{kind}").write_bytes(
            sound_file(kind, tone(0.5 + number / 2, 24000, 200.0 * number), 24000)
        )
        lines.append({"prompt": "<audio>How high?", "audio": f"{number}.{kind}", "answer": str(number)})
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = [f"data.{name}_files={tmp_path / 'data.jsonl'}" for name in ("train", "val")]
    run = TinyRun(
        files, "language", "qwen2_audio", "algorithm=grpo", *data, "data.train_batch_size=4", "rollout.n=2",
        "trainer.mini_batch_size=null", "validation.every=1", "steps=1", name="sounds",
    )  # fmt: skip
    run.train()
    kept = sorted((run.output / "validation" / "000001" / "pictures").iterdir())
    assert [path.name for path in kept] == ["001-0.wav", "002-0.wav", "003-0.wav"]
    with wave.open(str(kept[1])) as file:
        assert (file.getframerate(), file.getnchannels()) == (16000, 1)
        assert file.getnframes() == pytest.approx(24000, abs=100)
    assert (run.output / "report.html").read_text().count("<audio controls") == 3
    assert run.metrics[-1]["actor/grad_norm"] >= 0

    ask = ["sample", run.output, "How high?", "-n", "1", "-o", tmp_path / "samples", "--audio"]
    burnish(*ask, tmp_path / "2.flac")
    (record,) = [json.loads(line) for line in (tmp_path / "samples" / "samples.jsonl").read_text().splitlines()]
    assert record["audios"] == [str(tmp_path / "2.flac")]
    assert "no sound" in burnish(*ask, tmp_path / "data.jsonl", status=2).message
    deaf = TinyRun(files, "language", "qwen2_5_vl", "algorithm=grpo", *data, name="deaf")
    said = deaf.train(status=2).message
    assert "How high?" in said
    assert "hears none" in said
