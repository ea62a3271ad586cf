"""Which samples there are: prompts in their order, chosen and replaced ones, parts of a whole, and samples as data."""

import json
from dataclasses import replace
from pathlib import Path
from string import ascii_letters

import numpy as np
import pytest
import torch
import yaml

from burnish.config import load
from burnish.options.cluster import AsyncRolloutOptions
from burnish.rollout.sources import RolloutRequest
from burnish.tasks import assemble
from burnish.types.prompt import Prompt
from tests.support.optional import seldom
from tests.support.tiny_run import TinyRun

WORDS = ("one", "two", "three", "four", "five", "six")
FUNCTIONS = yaml.safe_load(Path(__file__).with_name("programs.yaml").read_text())["dull"]
ONCE = ["trainer.mini_batch_size=null", "trainer.epochs=1", "validation.before=false", "validation.every=null"]


def drawing(files, reward, *options, name="flow_grpo"):
    (files / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (files / "dull.py").write_text(FUNCTIONS)
    path = "{files}/rewards.py:brightness" if reward == "brightness" else f"{{files}}/dull.py:{reward}"
    return TinyRun(
        files, "generators", "flux", f"algorithm={name}", "data.train_files={files}/words.txt", "data.shuffle=false",
        f"rewards.brightness={{name: function, path: '{path}'}}", "rollout.save={every: 1}", *ONCE, *options,
        "data.val_files={files}/prompts.txt",
    )  # fmt: skip


def kept(run):
    """Prompts, numbers and rewards of the samples that were learned from or made, by update."""
    found = {}
    for file in sorted((run.output / "samples").glob("*/records.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            found.setdefault(line["update"], []).append((line["prompt"], line["sample"], line["reward"]))
    return {update: sorted(rows) for update, rows in found.items()}


FILTER = "rollout.filter_groups.max_num_gen_batches={}"


def test_prompts_without_differences_are_replaced_and_a_resumed_run_goes_on_with_the_very_next_ones(files):
    run = drawing(files, "dull", FILTER.format(3))
    run.train("steps=1")
    row, learned = run.metrics[-1], [reward for prompt, _, reward in kept(run)[1] if prompt in ("two", "three")]
    counts = ("num_gen_batches", "kept_groups", "dropped_groups", "spare_groups")
    assert [row[f"train/{name}"] for name in counts] == [2, 2, 1, 1]
    assert row["critic/rewards/mean"] == pytest.approx(np.mean(learned), rel=1e-5)
    run.train("steps=2")
    resumed, samples = run.metrics[-1], kept(run)
    run = drawing(files, "dull", FILTER.format(3))
    run.train("steps=2")
    assert run.metrics[-1] == resumed
    assert kept(run) == samples


def test_a_prompt_that_comes_again_gets_further_samples(files):
    run = drawing(files, "all_dull_but_one", FILTER.format(6))
    run.train("steps=1")
    again = [(sample, reward) for prompt, sample, reward in kept(run)[1] if prompt == "one"]
    assert [sample for sample, _ in again] == list(range(8))
    assert len({reward for _, reward in again}) == 8


@pytest.mark.parametrize(
    ("reward", "options"), [*seldom(("equal", [FILTER.format(1)])), ("lost", ["rollout.candidates.n=6"])]
)
def test_an_update_for_which_nothing_is_left_is_skipped_and_counted(reward, options, files):
    run = drawing(files, reward, *options)
    (files / "now").unlink(missing_ok=True)
    run.train("steps=1")
    before = run.tensors
    (files / "now").touch()
    run.train("steps=2")
    assert [row["actor/skipped_updates"] for row in run.metrics[-2:]] == [0, 1]
    weights = {key: value for key, value in run.tensors.items() if ".optimizer." not in key}
    assert all(torch.equal(value, before[key]) for key, value in weights.items())


def test_candidates_that_are_kept_are_the_extremes_of_those_that_are_drawn(files):
    run = drawing(files, "brightness", "rollout.candidates.n=8")
    run.train("steps=1")
    drawn = kept(run)[1]
    assert len(drawn) == 16
    best = [sorted(row[2] for row in drawn if row[0] == word) for word in WORDS[:2]]
    extremes = [reward for ranked in best for reward in (*ranked[:2], *ranked[-2:])]
    assert run.metrics[-1]["critic/rewards/mean"] == pytest.approx(np.mean(extremes), rel=1e-5)
    assert run.metrics[-1]["train/candidates/reward/mean"] == pytest.approx(np.mean([row[2] for row in drawn]))


def test_responses_that_are_put_aside_are_in_the_end_those_that_were_never_cut(files):
    stop = f"rollout.stop={json.dumps([*ascii_letters])}"
    run = TinyRun(files, "language", "llama", "algorithm=grpo", "rollout.max_new_tokens=8", stop, name="parts")
    worker = assemble(load(str(run.recipe), run.options)).rollout_worker
    prompts, group = [Prompt(text=word) for word in WORDS], torch.arange(6)
    request = RolloutRequest(
        prompts=prompts, group=group, sample=torch.zeros_like(group), groups=6, update=1, version=0
    )  # fmt: skip
    whole, parts = worker.generate(request), replace(worker, ahead=AsyncRolloutOptions(depth=1, partial=2))
    found, left = {}, request
    for update, longest in ((1, 2), (2, 4), (3, 8)):  # no token may be older than two updates
        done = parts.generate(replace(left, update=update, version=update - 1))
        assert done.version == 0
        assert 0 < int(done.trace.length.max()) <= longest
        assert done.metrics["pipeline/partial/put_aside"] == 1 - len(done.prompts) / len(left.prompts)
        rows = zip(done.prompts, done.scores.reward.tolist(), done.trace.ids, done.trace.length.tolist(), strict=True)
        found |= {prompt.text: (reward, ids[:length].tolist()) for prompt, reward, ids, length in rows}
        left = RolloutRequest.cat(done.put_aside) if done.put_aside else None
    # of those that are written to their ends now, two tokens are two updates old, and two one
    tokens, count = float(done.trace.length.sum()), len(done.prompts)
    assert done.metrics["pipeline/partial/resumed"] == 4 * count / tokens
    assert done.metrics["pipeline/staleness/mean"] == (2 * 2 + 2) * count / tokens
    rows = zip(whole.scores.reward.tolist(), whole.trace.ids, whole.trace.length.tolist(), strict=True)
    assert [found[word] for word in WORDS] == [(reward, ids[:length].tolist()) for reward, ids, length in rows]
