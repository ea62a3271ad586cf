"""Runs that learn from images, pairs and responses that are given, alone or beside what is sampled."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.golden.runs import run_of
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

SIZE, PROMPTS = 4, ("nought", "one", "two")
LEAN = ["validation.before=false", "validation.every=null", "steps=2"]
ONCE = ["trainer.mini_batch_size=null", "trainer.epochs=1"]
GIVEN = ["data.scores={reward: 1}", "algorithm.train_timesteps=2"]


@pytest.mark.parametrize(("half", "name"), [
    ("language", "grpo ptx"), ("language", "grpo scored"), ("language", "grpo replay"),
    ("language", "grpo image tokens"), ("generators", "flow_grpo replay"), ("generators", "flow_grpo written"),
    *seldom(("language", "dpo given"), ("reward_models", "bradley_terry"), ("generators", "flow_grpo supervised")),
])  # fmt: skip
def test_a_resumed_run_goes_on_bit_by_bit(half, name, files):
    whole = run_of(files, half, name)
    whole.train(*LEAN)
    metrics, tensors = whole.metrics, whole.tensors
    resumed = run_of(files, half, name)
    resumed.train(*LEAN[:2], "steps=1")
    resumed.train(*LEAN)
    assert resumed.metrics[-2:] == metrics[-2:]
    assert metrics[-1].get("train/replayed_groups", 1) > 0, "the second update replays a group of the first one"
    torch.testing.assert_close(resumed.tensors, tensors, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def scored(files):
    """Write images of noise, those of a prompt apart from each other in the list, each with a reward."""

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
    return [json.loads(line) for line in (run.output / "metrics.jsonl").read_text().splitlines()]


def learner(files, *options, name="awm", n=SIZE, prompts=2):
    return TinyRun(
        files, "generators", "sd3", f"algorithm={name}", *GIVEN, "data.train_files={files}/scored.jsonl",
        "data.fit=centre_crop", "data.val_files={files}/prompts.txt", f"rollout.n={n}", *LEAN[:2], *ONCE,
        f"data.train_batch_size={prompts}", *options,
    )  # fmt: skip


def test_a_run_learns_from_images_with_rewards(files, scored):
    lines = scored()
    run = learner(files, "data.shuffle=false")
    run.train("steps=2")
    rows = run.metrics[-2:]
    expected = [line["reward"] for prompt in PROMPTS[:2] for line in lines if line["prompt"] == prompt]
    assert rows[0]["critic/rewards/mean"] == pytest.approx(np.mean(expected))
    assert all(row["critic/rewards/group_size"] == SIZE for row in rows)
    assert all(row["perf/total_num_images"] == 2 * SIZE for row in rows_of(run)[-2:])


def test_of_more_images_than_an_update_takes_some_are_drawn_anew_and_missing_ones_are_left_out(files, scored):
    scored(each=9)
    run = learner(files, prompts=3, name="diffusion_nft")
    run.train("steps=2")
    first, second = rows_of(run)[-2:]
    assert first["perf/total_num_images"] == second["perf/total_num_images"] == 12
    assert first["critic/rewards/mean"] != second["critic/rewards/mean"]
    scored(lambda lines: [lines[0] | {"reward": None}, *lines[1:]])
    run = learner(files, prompts=3)
    run.train("steps=1")
    assert rows_of(run)[-1]["perf/total_num_images"] == 3 * SIZE - 1
    scored(lambda lines: [line | {"prompt": str(10 + i)} for i, line in enumerate(lines)])
    run = learner(files, "algorithm.advantage=returns", n=1, prompts=6)
    run.train("steps=1")
    assert run.metrics[-1]["actor/grad_norm"] > 0, "single images of prompts are compared with the batch"
    assert "algorithm.advantage=returns" in learner(files).train(status=2).message


WRONG = {
    "no number": (lambda lines: [lines[0] | {"reward": "good"}, *lines[1:]], ["scored.jsonl:1", "'good'"]),
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


WHOLE = [*LEAN[:2], "steps=1", "data.shuffle=false", "data.train_batch_size=3", "checkpoint.every=1"]


def test_a_run_learns_the_same_from_its_own_responses_as_when_it_sampled_them(files):
    sampling = TinyRun(files, "language", "qwen2_5_vl", "algorithm=grpo", "rollout.save={every: 1}", *WHOLE, name="own")
    sampling.train()
    samples = sampling.output / "samples"
    kept = [json.loads(line) for line in (samples / "metadata.jsonl").read_text().splitlines()]
    assert any(not one["finished"] for one in kept)
    kept.sort(key=lambda one: (one["group"], one["sample"]))  # the order that the run had them in

    def learning(lines, *options):
        (samples / "ordered.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        data = [f"data.train_files={samples}/ordered.jsonl", "data.val_files={data}/prompts.jsonl"]
        return TinyRun(
            files, "language", "qwen2_5_vl", "algorithm=grpo", "data.scores={odd: 1}", *data, *options, *WHOLE
        )

    same = learning(kept, "algorithm.rollout_correction=null")
    same.train()
    assert all(torch.equal(value, same.tensors[key]) for key, value in sampling.tensors.items())
    assert same.metrics[-1]["critic/odd/mean"] == sampling.metrics[-1]["critic/odd/mean"]
    corrected = learning([one | {"logprobs": [value - 0.1 for value in one["logprobs"]]} for one in kept])
    corrected.train()
    assert corrected.metrics[-1]["rollout_corr/rollout_is_mean"] == pytest.approx(np.exp(0.1), rel=1e-4)
    said = learning([kept[0] | {"token_ids": kept[1]["token_ids"]}, *kept[1:]]).train(status=2)
    assert "ordered.jsonl:1" in said.message
    assert "token_ids" in said.message
