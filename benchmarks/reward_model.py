"""A reward model in place of the reward: it learns preferences that the vlm_quickstart's rewards decide.

    python -m benchmarks.reward_model FOLDER [--seeds 0 1 2]

Writes preferences between responses of the untrained model (the rewards of the recipe say which of two is better),
trains a reward model on those to training questions and to more questions about images that are not held out, has it
judge those to held-out questions, and trains the policy once with the real rewards and once with the reward model. The
last line of a seed is what came out. The further questions need scikit-learn, whose digits they are about.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from burnish.commands.export import export
from burnish.commands.train import train
from burnish.config import load
from burnish.config.run_folder import STEP, RunFolder
from burnish.language.engine import ResponseJob, rollout_sampling
from burnish.rewards.text.base import Response
from burnish.tasks import assemble
from burnish.types.prompt import Prompt
from burnish.utils.random import permutation
from tools.tiny_vlm_data import split, write_questions

SAMPLES = 16  # of each question, as the recipe samples them
OTHERS = 12  # responses to other images that are judged beside
PAIRS = 4  # of a question and a kind at most
MORE = 1400  # further questions of each task
REWARD_MODEL: dict[str, Any] = {
    "task": "image-text-to-text",
    "model": {"path": "burnish:vlm_quickstart/model"},
    "algorithm": {"name": "bradley_terry"},
    "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95], "warmup_steps": 10, "schedule": "linear"},
    "rollout": {"max_new_tokens": 32},
    "trainer": {"mini_batch_size": 64},
    "steps": 1600,
}


def write_preferences(folder: Path, seed: int) -> None:
    """Pairs of responses to the training questions and to the held-out ones, as the rewards order them."""
    parts = split(0)
    more = write_questions(folder, "more", (*parts.train, *parts.warmup), MORE)
    files = f"[burnish:vlm_quickstart/train.jsonl, {more}]"
    config = load(
        "vlm_quickstart",
        [f"seed={seed}", "scoring.processes=0", f"output_dir={folder / 'unused'}", f"data.train_files={files}"],
    )
    assembly = assemble(config)
    with contextlib.closing(assembly):
        for name, prompts in (("train", assembly.train_prompts), ("heldout", assembly.val_prompts)):
            job = ResponseJob.groups(
                prompts, SAMPLES, purpose="sample", update=0, sampling=rollout_sampling(assembly.config)
            )
            _, responses = assembly.engine.sample(job)
            sampled = _rated(assembly, prompts, job.group.tolist(), responses)
            groups = [group for group in range(len(prompts)) for _ in range(OTHERS)]
            drawn = _rated(assembly, prompts, groups, _others(prompts, sampled, seed))
            lines = []
            for group, prompt in enumerate(prompts):
                in_form = {text: reward for text, reward in (sampled[group] | drawn[group]).items() if reward > 0}
                lines += _pairs(prompt, sampled[group], "sampled", seed) + _pairs(prompt, in_form, "seeing", seed)
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _rated(
    assembly: Any, prompts: Sequence[Prompt], groups: Sequence[int], responses: Sequence[Response]
) -> list[dict[str, float]]:
    """The rewards of the responses to each prompt, by their texts."""
    rewards = assembly.scorer.score(responses, [prompts[group] for group in groups]).reward.tolist()
    found: list[dict[str, float]] = [{} for _ in prompts]
    for group, response, reward in zip(groups, responses, rewards, strict=True):
        if response.text.strip():
            found[group][response.text] = reward
    return found


def _others(prompts: Sequence[Prompt], sampled: Sequence[dict[str, float]], seed: int) -> list[Response]:
    """Responses in form to the same question about other images: own ones are seldom wrong."""
    pools: dict[str, list[str]] = {}
    for prompt, rated in zip(prompts, sampled, strict=True):
        pools.setdefault(prompt.turns[-1].text, []).extend(text for text, reward in rated.items() if reward > 0)
    found = []
    for prompt in prompts:
        pool = pools[prompt.turns[-1].text]
        found += [Response(pool[i]) for i in permutation(len(pool), seed, prompt.uid, "others")[:OTHERS]]
    return found


def _pairs(prompt: Prompt, rated: dict[str, float], kind: str, seed: int) -> list[dict[str, Any]]:
    """Pairs of different rewards. ``seeing``: where both keep the form, only the images tell right from wrong."""
    pairs = [(a, b) if rated[a] > rated[b] else (b, a) for a, b in combinations(rated, 2) if rated[a] != rated[b]]
    images = [str(media.path) for media in prompt.images]
    text = "<image>" * len(images) + prompt.turns[-1].text
    common = {"prompt": text, "images": images, "data_source": kind}
    chosen = [pairs[number] for number in permutation(len(pairs), seed, prompt.uid, kind)[:PAIRS]]
    return [common | {"chosen": better, "rejected": worse} for better, worse in chosen]


def last(folder: Path) -> dict[str, float]:
    """Metrics of the last validation."""
    rows = [row for row in RunFolder(folder).read_metrics() if any(name.startswith("val-core/") for name in row)]
    return max(rows, key=lambda row: row[STEP])


def mean(row: dict[str, float], name: str) -> float:
    """Of the data sources of a validation."""
    values = [value for key, value in row.items() if key.startswith("val-aux/") and f"/{name}/mean@" in key]
    return sum(values) / len(values)


def run_seed(folder: Path, seed: int) -> dict[str, float]:
    """All of it for a seed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_preferences(folder, seed)
    recipe = REWARD_MODEL | {
        "data": {
            "train_files": str(folder / "train.jsonl"), "val_files": str(folder / "heldout.jsonl"),
            "train_batch_size": 64,
        },
        "validation": {"every": 0},
        "output_dir": str(folder / "reward_model"), "seed": seed,
    }  # fmt: skip
    (folder / "reward_model.yaml").write_text(json.dumps(recipe))
    train(load(str(folder / "reward_model.yaml"), []))
    export(str(folder / "reward_model"), output=str(folder / "exported"), what="merged")
    judged = last(folder / "reward_model")
    common = [f"seed={seed}", "validation.every=0"]
    train(load("vlm_quickstart", [*common, f"output_dir={folder / 'real'}"]))
    train(
        load(
            "vlm_quickstart",
            [
                *common, f"output_dir={folder / 'learned'}", "rewards.exact.weight=0", "rewards.format.weight=0",
                "rewards.reward_model.weight=1", f"rewards.reward_model.path={folder / 'exported'}",
            ],
        )
    )  # fmt: skip
    return {
        "seed": seed,
        "ordered_sampled": mean(judged, "sampled/accuracy"),
        "ordered_seeing": mean(judged, "seeing/accuracy"),
        "right_with_rewards": mean(last(folder / "real"), "exact"),
        "right_with_reward_model": mean(last(folder / "learned"), "exact"),
    }  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    asked = parser.parse_args(arguments)
    for seed in asked.seeds:
        print(json.dumps(run_seed(asked.folder / str(seed), seed)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
