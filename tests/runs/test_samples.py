"""Samples that runs keep: complete, bounded, replaced where an update is repeated, and data of the next run."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from tests.support.tiny_run import TinyRun

ASKED = [
    {"prompt": "a red cube", "negative_prompt": "blur", "answer": "cube", "data_source": "shapes", "label": "easy",
     "size": [1, 2]},
    {"prompt": "plain"},
]  # fmt: skip
KEYS = ["data.label_key=label", "data.extra_keys=[size]", "rollout.guidance_scale=2"]


def records(run, place="samples"):
    files = sorted((run.output / place).glob("*/records.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def drawing(files, *options):
    (files / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ASKED))
    data = "data.train_files={files}/asked.jsonl"
    one = ["trainer.mini_batch_size=null", "trainer.epochs=1", "validation.before=false", "validation.every=null"]
    return TinyRun(files, "generators", "flux", "algorithm=flow_grpo", data, *KEYS, *one, *options, name="kept")


def test_every_field_is_kept_and_an_update_that_is_repeated_replaces_what_it_wrote(files):
    run = drawing(files, "rollout.save={every: 1}", "checkpoint.every=1")
    run.train("steps=2")
    found = records(run)
    assert len(found) == 2 * 2 * 4
    first = next(one for one in found if one["prompt"] == "a red cube" and one["update"] == 2 and one["sample"] == 1)
    expected = {
        "version": 1, "negative_prompt": "blur", "answer": "cube", "data_source": "shapes", "label": "easy", "seed": 0,
        "purpose": "rollout", "drawn_for": 2, "images": None, "fault": "", "file_name": "001.png",
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert json.loads(first["record"])["size"] == [1, 2]
    assert first["where"].endswith("asked.jsonl:1")
    image = np.asarray(Image.open(run.output / "samples" / first["folder"] / first["file_name"]), np.float32)
    assert first["reward"] == pytest.approx(float(image.mean()), abs=0.01)
    assert first["components"] == {"brightness": first["reward"]}
    # the second update is lost in a crash, in the middle of what it wrote
    shutil.rmtree(run.output / "checkpoints" / "00000002")
    folder = run.output / "samples" / first["folder"]
    (folder / "records.jsonl").write_text('{"broken": 1}\n')
    folder.with_name(f".{folder.name}.new").mkdir()
    run.train("steps=2")
    assert records(run) == found
    assert not list((run.output / "samples").glob(".*"))


def test_another_run_learns_from_kept_samples(files):
    run = drawing(files, "rollout.save={every: 1}", "steps=1")
    run.train()
    kept = records(run)
    index = [json.loads(line) for line in (run.output / "samples" / "metadata.jsonl").read_text().splitlines()]
    assert [one["file_name"] for one in index] == [f"{one['folder']}/{one['file_name']}" for one in kept]
    options = [
        "algorithm=awm", "data.scores={reward: 1}", "algorithm.train_timesteps=2", "steps=1", "trainer.epochs=1",
        "validation.before=false", "validation.every=null",
    ]  # fmt: skip
    given = [f"data.train_files={run.output}/samples", "data.val_files={files}/prompts.txt"]
    learner = TinyRun(files, "generators", "flux", *options, *given, "trainer.mini_batch_size=null")
    learner.train()
    rewards = [one["reward"] for one in kept]
    assert learner.metrics[-1]["critic/rewards/mean"] == pytest.approx(np.mean(rewards), rel=1e-5)


def test_which_updates_and_prompts_are_kept_and_how_much(files):
    run = drawing(files, "rollout.save={every: 2, prompts: 1}")
    run.train()
    assert {(one["update"], one["group"]) for one in records(run)} == {(1, 0), (3, 0)}


def test_responses_are_kept_with_their_tokens(files):
    save = ["rollout.save={every: 1, prompts: 1}", "validation.save={prompts: 1}", "validation.n=2", "steps=1"]
    run = TinyRun(files, "language", "qwen2_5_vl", "algorithm=grpo", *save)
    run.train()
    assert {(one["update"], one["sample"]) for one in records(run)} == {(1, sample) for sample in range(4)}
    held = records(run, "validation_samples")
    assert {(one["update"], one["sample"]) for one in held} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    for one in [*records(run), *held]:
        assert one["reward"] == pytest.approx(sum(map(ord, one["response"])) % 11 / 10)
        assert len(one["images"] or ()) == (one["messages"] or "").count('"image"')
    rows, scores, asked = (
        list(map(json.loads, (run.output / "validation/000001" / f"{name}.jsonl").read_text().splitlines()))
        for name in ("samples", "scores", "prompts")
    )
    for kept in (rows, scores):
        assert [(row["index"], row["sample"]) for row in kept] == [(i, sample) for i in range(3) for sample in (0, 1)]
    assert [(one["index"], one["answer"]) for one in asked] == [(0, "0"), (1, "1"), (2, "2")]
    for row in rows:
        count = len(row["token_texts"])
        assert count == len(row["token_logprobs"]) == len(row["token_entropies"]) <= 5
        assert max(row["token_logprobs"]) < 0 < min(row["token_entropies"]) < max(row["token_entropies"]) < 10
        assert "".join(row["token_texts"]).startswith(row["response"][:1])
