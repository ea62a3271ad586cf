"""Values of every option that the command line can reach: out of range, of the wrong type, of the wrong shape."""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union

from burnish.config.complaints import section_class
from burnish.config.flow import FlowConfig
from burnish.config.language import LanguageConfig
from burnish.config.text import fields
from burnish.registry import lookup, names
from tests.hostile.bench import Case, Expect, Place

EXTREMES = ["-1", "0", "1e-300", "1e300", ".inf", ".nan", "100000000000", "1" + "0" * 40]
NO_NUMBER = ["many", "٣", "''", "[1, 2]", "{a: {b: [1]}}", "true", "0x10"]
NO_WORD = ["3", "[a]", "{a: 1}"]
NO_SWITCH = ["'yes'", "1", "[true]"]
NO_LIST = ["{a: {b: 1}}", "[[a], [{}]]", "true"]
NO_OPTIONS = ["3", "[1]"]
# read by a command that is never tried with these: a cluster, an engine of its own, where output goes
ELSEWHERE = ("pools", "ray", "vllm", "runtime", "output_dir", "resume", "timeline")
# what an option's section or algorithm can't do without
WITH = {
    "rollout.candidates": ["rollout.candidates.n=6"],
    "profiler": ["profiler.steps=[1]"],
    "supervised": ["supervised.train_files={place}/captions.jsonl"],
    "ptx": ["ptx.train_files={place}/demonstrations-seeing.jsonl"],
    "critic": ["algorithm=ppo"],
    "model.quantization": ["model.quantization.weights=fp8_cast"],
    "trackers.wandb": ["trackers.wandb.mode=offline"],
    "trackers.swanlab": ["trackers.swanlab.mode=offline"],
    "trackers.samples": ["trackers.tensorboard=true"],
    "trackers.wait": ["trackers.tensorboard=true"],
    "validation.save": ["validation.save.prompts=2"],
    "algorithm.splits": [],
    "algorithm.overlong": ["algorithm.overlong.buffer=2"],
}
SMALLER = {
    "branch_grpo": ["algorithm.splits=[0, 1]"],
    "flow_grpo_fast": ["algorithm.window={kind: random, size: 1}"],
    "mix_grpo": ["algorithm.window={kind: progressive, size: 1}"],
    "draft": ["rewards.brightness=null", "rewards.border_darkness.weight=-1"],
    "sft": ["data.train_files={place}/captions.jsonl", "data.val_files={place}/prompts.txt"],
}
REWARDS = {
    "function": None,
    "remote": ["rewards.remote.url=http://127.0.0.1:9/x"],
    "judge_endpoint": ["rewards.judge_endpoint.url=http://127.0.0.1:9", "rewards.judge_endpoint.model=m"],
    "environment": None,
}


def cases() -> Iterator[Case]:
    """Every option of both tasks with its values."""
    for task, config in (("drawing", FlowConfig), ("seeing", LanguageConfig)):
        seen: set[str] = set()
        for option, annotation, needed in _options(config):
            if option in seen or any(word in option.split(".") for word in ELSEWHERE):
                continue
            seen.add(option)
            for value, expect in _values(option, annotation):
                yield _case(task, option, value, expect, needed)


def _case(task: str, option: str, value: str, expect: Expect, needed: list[str]) -> Case:
    def make(place: Place, scratch: Path) -> list[str]:
        given = [one.replace("{place}", str(place.folder)) for one in needed if not one.startswith(f"{option}=")]
        return ["train", str(place.recipe(task)), *given, f"{option}={value}"]

    algorithm = next((one.partition("=")[2] for one in needed if one.startswith("algorithm=")), "")
    shown = value if len(value) <= 20 else f"{value[:17]}..."
    # at an end of its range a value may be fine, and something else that goes with it be refused
    words = (option.rpartition(".")[2],) if expect == "refused" else ()
    return Case(kind="values", name=f"{task} {algorithm} {option}={shown}", make=make, expect=expect, words=words)


def _options(config: Any) -> Iterator[tuple[str, Any, list[str]]]:
    """Dotted options with their types and with what must be given beside them."""
    for name, field in fields(config).items():
        if name == "algorithm":
            for kind in names(config.algorithm_kind):
                chosen = [f"algorithm={kind}", *_beside(config, kind)]
                yield from _within("algorithm", lookup(config.algorithm_kind, kind), chosen)
        elif name == "rewards":
            for kind in names(config.reward_kind):
                if REWARDS.get(kind, []) is not None:
                    chosen = [f"rewards.{kind}.weight=0", *(REWARDS.get(kind) or [])]
                    yield from _within(f"rewards.{kind}", lookup(config.reward_kind, kind), chosen)
        elif name != "environment":
            yield from _one(name, field.annotation, [])


def _beside(config: Any, algorithm: str) -> list[str]:
    if config is FlowConfig:
        times = "train_timesteps" in fields(lookup(config.algorithm_kind, algorithm))
        return [*SMALLER.get(algorithm, []), *(["algorithm.train_timesteps=2"] if times else [])]
    data = {"sft": "demonstrations", "dpo": "preferences", "ipo": "preferences", "kto": "judgements"}.get(algorithm)
    if data:
        return [f"data.train_files={{place}}/{data}-seeing.jsonl", "algorithm.online=false"]
    needs = lookup(config.algorithm_kind, algorithm)().needs()
    return [f"data.train_files={{place}}/{needs.data}-seeing.jsonl", "rewards.odd=null"] if needs.heads else []


def _within(path: str, section: Any, needed: list[str]) -> Iterator[tuple[str, Any, list[str]]]:
    for name, field in fields(section).items():
        yield from _one(f"{path}.{name}", field.annotation, needed)


def _one(option: str, annotation: Any, needed: list[str]) -> Iterator[tuple[str, Any, list[str]]]:
    needed = [*needed, *next((more for start, more in WITH.items() if f"{option}.".startswith(f"{start}.")), [])]
    section = section_class(annotation)
    if section is not None:
        yield option, dict, needed
        yield from _within(option, section, needed)
    else:
        yield option, annotation, needed


def _values(option: str, annotation: Any) -> Iterator[tuple[str, Expect]]:
    """What is not of an option's type, which has to be refused, and what is at the ends of its range."""
    kinds = _kinds(annotation)
    if int in kinds or float in kinds:
        yield from ((value, "either") for value in EXTREMES)
        wrong = [one for one in NO_NUMBER if one != "true" or bool not in kinds]
        wrong = wrong if str not in kinds else ["[1, 2]", "true"]
        yield from ((value, "refused") for value in random.Random(option).sample(wrong, min(3, len(wrong))))
    elif Literal in kinds or (str in kinds and len(kinds) == 1):
        yield from ((value, "refused") for value in NO_WORD)
        yield ("no such thing", "refused" if Literal in kinds else "either")
        yield from ((value, "either") for value in ("''", '"\\0"', '"\\e[31m"', "x" * 5000))
    elif bool in kinds:
        yield from ((value, "refused") for value in NO_SWITCH)
    elif list in kinds or tuple in kinds:
        yield from ((value, "refused") for value in NO_LIST)
        yield from ((value, "either") for value in ("[]", "[-1]", "[1e300, 1e300]", "['']"))
    else:
        yield from ((value, "refused") for value in NO_OPTIONS)


def _kinds(annotation: Any) -> set[Any]:
    """What a value may be, apart from null."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _kinds(typing.get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return {kind for one in typing.get_args(annotation) for kind in _kinds(one)}
    return {origin or annotation} - {type(None)}
