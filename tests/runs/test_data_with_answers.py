"""Runs that learn from pictures, pairs and responses that are given, alone or beside what is sampled."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from burnish import load
from burnish.tasks import assemble
from burnish.types.columns import read
from tests.golden.runs import run_of
from tests.support.tiny_run import TinyRun

SIZE, PROMPTS = 4, ("nought", "one", "two")
LEAN = ["validation.before=false", "validation.every=null", "steps=2"]
ONCE = ["trainer.mini_batch_size=null", "trainer.epochs=1"]
GIVEN = ["algorithm.online=false", "algorithm.train_timesteps=2"]


@pytest.mark.parametrize(
    ("half", "name"),
    [
        ("language", "dpo given"), ("language", "grpo ptx"), ("reward_models", "bradley_terry"),
        *(pytest.param(*one, marks=pytest.mark.thorough) for one in
          (("language", "sft"), ("language", "kto given"), ("generators", "flow_grpo supervised"))),
    ],
)  # fmt: skip
def test_a_resumed_run_goes_on_bit_by_bit(half, name, files):
    whole = run_of(files, half, name)
    whole.train(*LEAN)
    metrics, tensors = whole.metrics, whole.tensors
    resumed = run_of(files, half, name)
    resumed.train(*LEAN[:2], "steps=1")
    resumed.train(*LEAN)
    assert resumed.metrics[-2:] == metrics[-2:]
    assert all(torch.equal(value, tensors[key]) for key, value in resumed.tensors.items())
    assert resumed.tensors.keys() == tensors.keys()


@pytest.fixture
def scored(files):
    """Write pictures of noise, those of a prompt apart from each other in the list, each with a reward."""

    def write(change=lambda lines: lines, each=SIZE):
        draw = np.random.default_rng(0)
        lines = []
        for number in range(each):
            for prompt in PROMPTS:
                name = f"{prompt}-{number}.png"
                Image.fromarray(draw.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(files / name)
                lines.append({"prompt": prompt, "image": name, "reward": float(draw.random())})
        lines = change(lines)
        (files / "scored.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return lines

    return write


def rows_of(run):
    """Lines of metrics.jsonl, speeds and sizes too."""
    return [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]


def learner(files, *options, name="awm", n=SIZE, prompts=2):
    return TinyRun(
        files, "generators", "sd3", f"algorithm={name}", *GIVEN, "data.train_files={files}/scored.jsonl",
        "data.fit=centre_crop", "data.val_files={files}/prompts.txt", f"rollout.n={n}", *LEAN[:2], *ONCE,
        f"data.train_batch_size={prompts}", *options,
    )  # fmt: skip


def test_a_run_learns_from_pictures_with_rewards_and_goes_on_bit_by_bit(files, scored):
    lines = scored()
    run = learner(files, "data.shuffle=false")
    run.train("steps=2")
    rows, tensors = run.metrics[-2:], run.tensors
    expected = [line["reward"] for prompt in PROMPTS[:2] for line in lines if line["prompt"] == prompt]
    assert rows[0]["critic/rewards/mean"] == pytest.approx(np.mean(expected))
    assert all(row["critic/rewards/group_size"] == SIZE for row in rows)
    assert all(row["perf/total_num_images"] == 2 * SIZE for row in rows_of(run)[-2:])
    run = learner(files, "data.shuffle=false")
    run.train("steps=1")
    run.train("steps=2")
    assert run.metrics[-2:] == rows
    assert all(torch.equal(value, tensors[key]) for key, value in run.tensors.items())


def test_of_more_pictures_than_an_update_takes_some_are_drawn_anew(files, scored):
    scored(each=9)
    run = learner(files, prompts=3, name="diffusion_nft")
    run.train("steps=2")
    first, second = rows_of(run)[-2:]
    assert first["perf/total_num_images"] == second["perf/total_num_images"] == 12
    assert first["critic/rewards/mean"] != second["critic/rewards/mean"]


def test_a_reward_that_is_missing_is_left_out(files, scored):
    scored(lambda lines: [lines[0] | {"reward": None}, *lines[1:]])
    run = learner(files, prompts=3)
    run.train("steps=1")
    assert rows_of(run)[-1]["perf/total_num_images"] == 3 * SIZE - 1


def test_single_pictures_of_prompts_are_compared_with_the_batch(files, scored):
    scored(lambda lines: [line | {"prompt": str(10 + i)} for i, line in enumerate(lines)])
    run = learner(files, "algorithm.advantage=returns", n=1, prompts=6)
    run.train("steps=1")
    assert run.metrics[-1]["actor/grad_norm"] > 0
    assert "algorithm.advantage=returns" in learner(files).train(status=2).message


WRONG = {
    "no number": (lambda lines: [lines[0] | {"reward": "good"}, *lines[1:]], ["scored.jsonl:1", "'good'"]),
    "two": (lambda lines: [lines[0] | {"score": 1.0}, *lines[1:]], ["scored.jsonl:1", "'reward'", "'score'"]),
    "none": (lambda lines: [{"prompt": "x", "image": lines[0]["image"]}], ["scored.jsonl:1", "reward"]),
    "all missing": (lambda lines: [line | {"reward": None} for line in lines], ["scored.jsonl"]),
    "few": (lambda lines: lines[:9], ["rollout.n is 4", "rollout.n=3"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rewards_are_refused_before_weights_are_loaded(case, files, scored):
    change, names = WRONG[case]
    scored(change)
    said = learner(files).train(status=2)
    assert [name for name in names if name not in said.message] == []
    assert "Loading the model" not in said.err


def test_pictures_of_another_size_are_refused_or_cropped(files, scored):
    scored()
    options = [f"data.train_files={files}/scored.jsonl", *LEAN[:2], "steps=1", "algorithm=sft",
               "trainer.mini_batch_size=1"]  # fmt: skip
    sizes = ["rollout.height=16", "rollout.width=24"]
    said = TinyRun(files, "generators", "sd3", *options, *sizes).train(status=2)
    assert "scored.jsonl:1" in said.message
    assert "fit=centre_crop" in said.message
    TinyRun(files, "generators", "sd3", *options, *sizes, "data.fit=centre_crop").train()


def assembly_of(run, *options):
    assembly = assemble(load(str(run.recipe), *run.options, *options))
    assembly.check_data()
    assembly.check()
    return assembly


def test_it_learns_what_the_same_samples_would_have_taught(files, scored):
    """The run that samples is given the same latents and rewards: all else is a function of prompts and seed."""
    scored()
    (files / "named.txt").write_text("".join(f"{prompt}\n" for prompt in PROMPTS))
    given = assembly_of(learner(files, "data.shuffle=false"))
    online = ["algorithm=awm", "algorithm.train_timesteps=2", "data.train_files={files}/named.txt"]
    sampling = assembly_of(TinyRun(files, "generators", "sd3", *online, "data.shuffle=false", *ONCE, name="online"))
    batch, sampled = given.source.collect(1), sampling.source.collect(1)
    assert sampled.group.tolist() == batch.group.tolist()
    assert sampled.sample.tolist() == batch.sample.tolist()
    same = replace(
        sampled,
        trace=replace(sampled.trace, latents=batch.trace.latents),
        scores=replace(sampled.scores, reward=batch.scores.reward),
    )
    found = []
    for assembly, collected in ((given, batch), (sampling, same)):
        learned, _ = assembly.workers.credit(assembly.workers.annotate(collected))
        assembly.workers.update(learned, 1)
        found.append(torch.cat([value.detach().flatten() for value in assembly.roles.parameters().values()]))
    assert torch.equal(*found)


def test_stored_latents_and_their_pictures_give_the_same_run(files, tmp_path):
    options = ["algorithm=diffusion_dpo", *GIVEN, *ONCE, "data.shuffle=false", *LEAN[:2]]
    drawn = TinyRun(files, "generators", "sd3", *options, "data.train_files={files}/pairs.jsonl", name="drawn")
    batch = assembly_of(drawn).source.collect(1)
    rows = batch.conditioning.rows()
    chosen, rejected = (part.contiguous() for part in batch.latents.unbind(1))
    tensors = {"chosen": chosen, "rejected": rejected, "tokens": rows.tokens, "pooled": rows.pooled}
    stored = TinyRun(
        files, "generators", "sd3", *options, f"data.train_files={tmp_path}/pairs.safetensors",
        "data.val_files={files}/prompts.txt",
    )  # fmt: skip

    save_file(tensors, tmp_path / "pairs.safetensors")
    both = f"data.train_files=[{tmp_path}/pairs.safetensors, {files}/pairs.jsonl]"
    said = TinyRun(files, "generators", "sd3", *options, both, "data.val_files={files}/prompts.txt").train(status=2)
    assert "pairs.safetensors" in said.message

    def refused(*, without=(), **changed):
        kept = {name: value.contiguous() for name, value in (tensors | changed).items() if name not in without}
        save_file(kept, tmp_path / "pairs.safetensors")
        said = stored.train(status=2)
        assert "pairs.safetensors" in said.message
        return said.message

    assert "pooled" in refused(without=["pooled"])
    assert "chosen" in refused(chosen=torch.full_like(chosen, torch.nan))
    assert "rollout.height" in refused(chosen=chosen[..., :1], rejected=rejected[..., :1])
    save_file(tensors, tmp_path / "pairs.safetensors")
    found = assembly_of(stored).source.collect(1)
    assert torch.equal(read(found.latents), batch.latents)
    assert torch.equal(read(found.conditioning.rows().tokens), rows.tokens)
    stored.train("steps=1")
    assert stored.metrics[-1]["train/pairs"] == 2


def records(files, *lines):
    path = files / "given.jsonl"
    path.write_text("".join(json.dumps({"prompt": "What?", "answer": "4"} | line) + "\n" for line in lines))
    return [f"data.train_files={path}", "trainer.mini_batch_size=1", "algorithm.online=false"]


def test_what_is_too_long_is_left_out_and_never_cut(files):
    data = records(files, {"response": "4"}, {"response": "yes"}, {"response": "no" * 20})
    run = TinyRun(files, "language", "llama", "algorithm=sft", *data, "steps=2", "rollout.max_new_tokens=5")
    said = run.train(status=2)
    assert "data.overlong=filter" in said.message
    run.train("data.overlong=filter")
    assert {row["response_length/max"] for row in run.metrics if "actor/loss" in row} == {5}
    said = run.train("data.overlong=filter", "data.max_prompt_length=3", status=2)
    assert "data.max_prompt_length" in said.message


REFUSED = [
    (["algorithm=dpo"], [{"chosen": "4", "rejected": "5"}, {"chosen": "4"}, {"chosen": "4", "rejected": "4"}],
     ["given.jsonl:2", "rejected", "given.jsonl:3"]),
    (["algorithm=sft", "rewards.exact.weight=1"], [{"response": "4", "answer": None}] * 2, ["answer"]),
]  # fmt: skip


@pytest.mark.parametrize(("options", "lines", "names"), REFUSED)
def test_wrong_records_are_refused_with_their_lines_before_weights_are_loaded(options, lines, names, files):
    said = TinyRun(files, "language", "llama", *options, *records(files, *lines)).train(status=2)
    assert [name for name in names if name not in said.message] == []
    assert "Loading the model" not in said.err
