"""Which samples there are: prompts in their order, chosen and replaced ones, parts of a whole, and samples as data."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from burnish import load
from burnish.checkpoint.snapshot import Snapshot
from burnish.rollout.filter import fill, varied
from burnish.rollout.requests import join, split
from burnish.rollout.serialization import deserialize, serialize
from burnish.tasks import assemble
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features
from burnish.types.media import Media
from burnish.types.response_stats import ResponseStats
from burnish.types.rollout import Prompt, ScoredResponses, Scores
from tests.support.equality import same
from tests.support.tiny_run import TinyRun
from tests.support.toy_source import START, prompt_schedule, sampled, saved

WORDS = ("one", "two", "three", "four", "five", "six")
FUNCTIONS = """
import pathlib
import numpy as np


def dull(images, prompts):
    return [0.5 if prompt.text in ("one", "four") else float(np.asarray(image).mean())
            for image, prompt in zip(images, prompts)]


def all_dull_but_one(images, prompts):
    return [float(np.asarray(image).mean()) if prompt.text == "one" else 0.5 for image, prompt in zip(images, prompts)]


def later(value, images):
    now = pathlib.Path(__file__).with_name("now").exists()
    return [value if now else float(np.asarray(image).mean()) for image in images]


def equal(images, prompts):
    return later(0.5, images)


def lost(images, prompts):
    return later(None, images)
"""
ONCE = ["trainer.mini_batch_size=null", "trainer.epochs=1", "validation.before=false", "validation.every=null"]


def drawing(files, reward, *options, name="flow_grpo"):
    (files / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    (files / "dull.py").write_text(FUNCTIONS)
    path = "{files}/rewards.py:brightness" if reward == "brightness" else f"{{files}}/dull.py:{reward}"
    return TinyRun(
        files, "generators", "sd3", f"algorithm={name}", "data.train_files={files}/words.txt", "data.shuffle=false",
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
    row = run.metrics[-1]
    assert [row[f"train/{name}"] for name in ("num_gen_batches", "kept_groups", "dropped_groups")] == [2, 2, 2]
    assert row["train/spare_groups"] == 0
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


@pytest.mark.parametrize(("reward", "options"), [("equal", [FILTER.format(1)]), ("lost", ["rollout.candidates.n=6"])])
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
    # chosen by cheap pictures, they are drawn again as they would have been among all
    cheap = drawing(files, "brightness", "rollout.candidates={n: 8, num_inference_steps: 2}")
    cheap.train("steps=1")
    chosen = kept(cheap)[1]
    every = {(word, sample): reward for word, sample, reward in drawn}
    assert [word for word, _, _ in chosen] == ["one"] * 4 + ["two"] * 4
    assert [reward for *_, reward in chosen] == pytest.approx([every[row[:2]] for row in chosen], abs=0.05)


def groups_of(*batches, missing=()):
    """Draws of batches of groups of two, one after the other; ``version`` numbers the rows."""
    given = []

    def draw():
        number = len(given)
        given.append(number)
        reward = torch.tensor([value for pair in batches[number] for value in pair])
        count = len(reward)
        absent = torch.tensor([100 * number + i in missing for i in range(count)])
        made = sampled(prompt_schedule().request(1, 0, Counter()).select([0] * count), START)
        return dataclasses.replace(
            made, group=torch.arange(count) // 2, sample=torch.arange(count) + 100 * number,
            scores=dataclasses.replace(made.scores, reward=reward, missing=absent), metrics={"a": number + 1.0},
            counts={},
        )  # fmt: skip

    draw.given = given
    return draw


GOOD, EQUAL = (0.0, 1.0), (0.3, 0.3)
FILLED = [
    ([[GOOD, EQUAL, GOOD]], 3, 1, [0, 1, 4, 5], {"num_gen_batches": 1, "kept": 2, "dropped": 1, "spare": 0}),
    ([[GOOD, EQUAL, EQUAL], [EQUAL, GOOD, GOOD], [GOOD] * 3], 3, 5, [0, 1, 102, 103, 104, 105],
     {"num_gen_batches": 2, "kept": 3, "dropped": 3, "spare": 0}),
    ([[GOOD, EQUAL], [GOOD, GOOD]], 2, 5, [0, 1, 100, 101], {"num_gen_batches": 2, "kept": 2, "spare": 1}),
    ([[EQUAL, EQUAL]] * 4, 2, 3, [], {"num_gen_batches": 3, "kept": 0, "dropped": 6}),
]  # fmt: skip


@pytest.mark.parametrize(("batches", "groups", "rounds", "rows", "told"), FILLED)
def test_a_batch_is_filled_with_groups_that_differ_and_no_further(batches, groups, rounds, rows, told):
    draws = groups_of(*batches)
    found = fill(draws, groups, rounds)
    assert found.sample.tolist() == rows
    assert found.group.tolist() == [number // 2 for number in range(len(rows))]
    for name, value in told.items():
        assert found.metrics[f"train/{name}" if "_" in name else f"train/{name}_groups"] == value
    assert len(draws.given) == told["num_gen_batches"]


def test_equality_is_exact_and_one_reward_has_nothing_to_compare_with():
    above = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).item()
    assert varied(groups_of([EQUAL, (0.5, above), GOOD, (0.1 + 0.2, 0.3)])()).tolist() == [2, 3, 4, 5]
    assert varied(groups_of([GOOD, GOOD], missing={0})()).tolist() == [2, 3]


def close(whole, parted):
    """Equal rows, whatever tables they refer to, and what a network has computed up to rounding."""
    assert type(parted) is type(whole)
    if isinstance(whole, dict):
        assert whole.keys() == parted.keys()
        for name in whole:
            close(whole[name], parted[name])
    elif isinstance(whole, torch.Tensor):
        torch.testing.assert_close(parted, whole, rtol=0, atol=1e-4, equal_nan=True)
    elif isinstance(whole, list | tuple):
        assert len(whole) == len(parted)
        for one, other in zip(whole, parted, strict=True):
            close(one, other)
    elif dataclasses.is_dataclass(whole):
        whole, parted = (one.rows() if isinstance(one, Gathered) else one for one in (whole, parted))
        for field in dataclasses.fields(whole):
            if field.name not in ("metrics", "counts", "ran", "seconds"):  # what depends on the clock
                close(getattr(whole, field.name), getattr(parted, field.name))
    elif isinstance(whole, float):
        assert parted == pytest.approx(whole, abs=1e-4, nan_ok=True)
    else:
        assert parted == whole


PARTS = {
    "paths": ("generators", "sd3", ["algorithm=flow_grpo"]),
    "a tree": ("generators", "sd3", ["algorithm=branch_grpo", "algorithm.splits=[0, 1]"]),
    "candidates": ("generators", "sd3", ["algorithm=flow_grpo", "rollout.candidates={n: 6, num_inference_steps: 2}"]),
    "greedy": ("language", "llama", ["algorithm=remax"]),
    "dialogues": (
        "language", "qwen2_5_vl",
        ["algorithm=grpo", "environment.name=function", "environment.path=tests.support.games:Show",
         "environment.arguments={opening: true, pictures: true, fails: '', turns: 3}", "environment.max_turns=4",
         "rewards.environment.weight=0.5"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS)
def test_samples_that_are_made_in_parts_are_those_of_the_whole(case, files):
    half, model, options = PARTS[case]
    run = TinyRun(files, half, model, *options)
    assembly = assemble(load(str(run.recipe), *run.options))
    assembly.check_data()
    assembly.check()
    asked = assembly.prompt_schedule.request(2, 1, Counter())
    whole = assembly.rollout_worker.generate(asked)
    assert (whole.update, whole.version) == (2, 1)
    parted = join([assembly.rollout_worker.generate(part) for part in split(asked, 2)])
    close(whole, parted)
    assert parted.metrics == pytest.approx(whole.metrics, rel=1e-3, abs=1e-5, nan_ok=True)


def test_a_split_keeps_groups_whole_and_joins_means_by_what_they_were_taken_over():
    schedule = prompt_schedule()
    asked = schedule.request(1, 0, Counter()).select([0, 1, 2, 3, 4, 5])
    for count in (2, 9):
        assert [part.group.tolist() for part in split(asked, count)] == [[0] * 3, [1] * 3]
    (alone,) = split(asked, 1)
    assert alone.prompts == asked.prompts
    assert all(part.groups == 2 for part in split(asked, 2))
    first, second = (sampled(part, START) for part in split(asked, 2))
    first.metrics, first.counts = {"a": 1.0, "b": math.nan, "max": 3.0, "mine": 5.0}, {"a": 3, "b": 0, "mine": 2}
    second.metrics, second.counts = {"a": 5.0, "b": 2.0, "max": 1.0}, {"a": 1, "b": 4}
    assert join([first, second]).metrics == {"a": 2.0, "b": 2.0, "max": 3.0, "mine": 5.0}
    assert join([first, second]).counts == {"a": 4, "b": 4, "mine": 2}
    assert math.isnan(join([first, first]).metrics["b"])
    telling = dataclasses.replace(schedule, tells=True)
    before, after = split(telling.request(2, 0, Counter()), 2), split(schedule.request(3, 1, Counter()), 2)
    assert [told.ahead for told in before] == [list(dict.fromkeys(had.prompts)) for had in after]


def answered():
    """Two responses to a question with a picture, a video of frames and a file; one to a plain question."""
    picture = Media.array(np.arange(48, dtype=np.uint8).reshape(4, 4, 3))
    film = Media.movie([picture, Media.array(np.zeros((2, 2), np.uint8))], fps=2.0)
    file = Media(kind="image", digest="00", path="/somewhere/picture.png")
    seeing = Prompt(text="What?", images=(picture, file), videos=(film,), answer="7", label="sum", extra='{"a": 1}')
    prompts = [seeing, seeing, Prompt(text="Why?")]
    table = Encoded(
        ids=[torch.arange(5), torch.arange(2)],
        positions=[torch.arange(15).view(3, 5), torch.arange(6).view(3, 2)],
        features=[Features({"images": torch.rand(3, 4), "image_grid": torch.tensor([[1, 3, 1]])}), Features.none()],
    )
    reward = torch.tensor([0.5, float("nan"), 1.0])
    return ScoredResponses(
        prompts=prompts, group=torch.tensor([0, 0, 1]), sample=torch.tensor([0, 1, 0]),
        scores=Scores(
            reward=reward, missing=reward.isnan(), components=reward[:, None], names=("exact",), weights=(1.0,),
            notes=["", "lost", "\u00e9"],
        ),
        trace=Completion(
            prompts=Gathered(table=table, index=torch.tensor([0, 0, 1])), ids=torch.arange(6).view(3, 2),
            mask=torch.ones(3, 2, dtype=torch.bool), logprob=torch.rand(3, 2),
            positions=torch.arange(6).view(3, 1, 2).expand(-1, 3, -1), length=torch.tensor([2, 2, 2]),
            finished=torch.tensor([True, False, True]), features=[Features.none()] * 3,
        ),
        greedy=torch.full((3,), torch.nan), turn_rewards=torch.zeros(3, 0), limit=2, update=3, version=1, seed=7,
        metrics={"train/dialogue/turns/mean": float("nan")}, counts={"train/dialogue/turns/mean": 0.0},
    )  # fmt: skip


def test_rollouts_come_back_bit_by_bit_as_data_of_a_checkpoint():
    drawn = sampled(prompt_schedule().request(4, 2, Counter()), START)
    for rollouts in (answered(), drawn, drawn.select([])):
        plain = serialize(rollouts)
        Snapshot.of(1, {"source": plain}, identity={}, score=None, copy=False, rank=0)  # refuses what none can hold
        again = deserialize(saved(plain))
        same(again, rollouts)
        assert [prompt.uid for prompt in again.prompts] == [prompt.uid for prompt in rollouts.prompts]
    plain = serialize(answered())
    again = deserialize(saved(plain))
    assert again.prompts[0] is again.prompts[1]
    assert again.prompts[0].videos[0].frames[0] is again.prompts[0].images[0]
    assert Counter(one["kind"] for one in plain["shared"]) == {"Prompt": 2, "Media": 4, "Features": 3}
    with pytest.raises(AssertionError, match="can't be saved"):
        serialize(dataclasses.replace(answered(), metrics={"x": {1, 2}}))


def test_names_of_earlier_versions_are_still_read():
    plain = serialize(answered())
    plain["whole"]["kind"] = "Answered"
    fields = plain["whole"]["fields"]
    fields["said"] = [one | {"kind": "Said"} for one in fields.pop("stats")]
    pixels = {"images": torch.rand(3, 4), "image_grid": torch.tensor([[1, 3, 1]])}
    place = next(number for number, one in enumerate(plain["shared"]) if one["kind"] == "Features")
    plain["shared"][place]["fields"] = pixels | {"videos": torch.zeros(0, 0), "video_grid": torch.zeros(0, 3)}
    again = deserialize(saved(plain))
    assert isinstance(again, ScoredResponses)
    assert all(isinstance(one, ResponseStats) for one in again.stats)
    read = again.trace.prompts.table.features[0]
    assert read.tensors.keys() == pixels.keys()
    assert torch.equal(read.get("images"), pixels["images"])
