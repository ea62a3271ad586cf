"""What options a run gets: defaults, recipes, variants, the command line, and what one option decides about others."""

from __future__ import annotations

import dataclasses
import typing
from functools import cache
from pathlib import Path

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

import burnish
from burnish.config.text import explanation, fields
from burnish.options.cluster import PipelineOptions
from burnish.registry import lookup, names
from tests.support.command_lines import accept
from tests.support.options import options_of

SAVED = [  # options, and what they decide
    ([], {"steps": 30, "optimizer.lr": 3e-4, "algorithm.beta": 0.5, "ema": None, "rollout.batch_size": "auto"}),
    (["algorithm=flow_grpo"], {"steps": 40, "optimizer.lr": 2e-3, "algorithm.clip": 1e-3}),
    (["steps=7", "algorithm=flow_grpo"], {"steps": 7}),
    (["algorithm.noise_level=0.3", "algorithm=flow_grpo"], {"algorithm.noise_level": 0.3, "algorithm.clip": 1e-3}),
    (["algorithm=diffusion_nft"], {"algorithm.beta": 0.5}),
    (["algorithm.clip=0.01", "algorithm=flow_grpo"], {"algorithm.name": "flow_grpo", "algorithm.clip": 0.01}),
    (["algorithm={name: flow_grpo, clip: 0.01}"], {"algorithm.name": "flow_grpo", "algorithm.clip": 0.01}),
    (["algorithm.name=flow_grpo", "algorithm.clip=.01", "algorithm=flow_grpo"], {"algorithm.clip": 0.01}),
    (["model.lora=null"], {"model.lora": None}), (["model.lora.rank=8"], {"model.lora.rank": 8}),
    (["ema.decay=0.5"], {"ema.decay": 0.5}), (["ema={}"], {"ema.decay": 0.9}),
    (["rewards.strict={name: ocr, weight: -1.5}"], {"rewards.strict.name": "ocr", "rewards.strict.weight": -1.5}),
    (["output_dir='1e-4'", "optimizer.eps=1e-30", "seed=123456789"], {"output_dir": "1e-4", "optimizer.eps": 1e-30}),
    (["model.lora.targets=[attn.to_q]", "optimizer.betas=[0.5,.25]"],
     {"model.lora.targets": ["attn.to_q"], "optimizer.betas": (0.5, 0.25)}),
    (["threads=2", "scoring.processes=2", "rollout.n=10000", "optimizer.max_grad_norm=1e9", "steps=1000000000",
      "trainer.micro_batch_size=1000000"], {"rollout.n": 10000}),
    (["runtime=ray", "pools.train.processes=2", "sharding.shard_size=2"], {"sharding.shard_size": 2}),
    (["runtime=ray", "threads=1000", "pools.train={nodes: 2, processes: 2}", "pools.rollout.processes=2"],
     {"threads": 1000}),
    (["runtime=ray", "pools.rollout.processes=1", "pipeline={depth: 3, max_staleness: 1, drop: true, timeout: 9}"],
     {"pipeline.depth": 3}),
    (["runtime=ray", "pools.train.device=cuda", "pools.rollout.device=cpu", "pools.reward.device=cpu"], {}),
    (["runtime=ray", "algorithm=sft", "pools.train.processes=2"], {}),
    (["sharding.offload=true", "sharding.gather=compute", "sharding.reshard_after_forward=false"],
     {"sharding.offload": True}),
    (["rewards.ocr.gate={by: border_darkness, least: 0.1}", "rewards.ocr.cap=0.9"], {"rewards.ocr.cap": 0.9}),
    (["rewards.ocr.weight_by={default: 0.5}", "mixing.normalise={}"], {}),
    (["mixing.rule=product", "rewards.border_darkness.weight=0.5",
      "rewards.ocr.schedule={points: [[1, 0.0], [9, 1.0]], between: hold}"], {}),
    (["rewards.ocr={weight: 0, weight_by: {default: 1.0}}"], {}),
    (["rollout.candidates={n: 24, num_inference_steps: 4}", "rollout.filter_groups.max_num_gen_batches=3"], {}),
    (["algorithm.advantage_aggregation=each", "rewards.border_darkness.weight=-0.5"], {}),
    (["scoring.merge=true", "rewards.clip={path: here, weight: 0.1}"], {}),
    (["data={sampler: 'mine.py:choose', shuffle: false, train_max_samples: 4}"], {}),  # the first ones
    (["trainer.shuffle=false", "trainer.mini_batch_size=48"], {}),
    (["alarms.limits={velocity: 2, kl: 1}", "alarms.off=[narrowing, ocr]"], {"alarms.off": ["narrowing", "ocr"]}),
    (["alarms=null", "data.val_files=null", "validation.max_prompts=3"], {"alarms": None}),
]  # fmt: skip


def value_of(config, option: str):
    for name in option.split("."):
        config = config[name] if isinstance(config, dict) else getattr(config, name)
    return config


@pytest.mark.parametrize(("options", "values"), SAVED, ids=[" ".join(options) for options, _ in SAVED])
def test_what_options_decide_is_saved_and_loads_again(recipe, tmp_path, options, values):
    """Defaults, then recipe, then variant, then command line, in any order."""
    config = burnish.load(recipe, *options)
    assert {option: value_of(config, option) for option in values} == values
    from burnish.config import dump

    (tmp_path / "saved.yaml").write_text(dump(config))
    assert burnish.load(str(tmp_path / "saved.yaml")) == config


@pytest.mark.parametrize(
    "line",
    [
        "vlm_quickstart validation.every=null validation.n=2",
        "vlm_quickstart validation.temperature=0 validation.n=1",
        "vlm_quickstart algorithm=bradley_terry validation.max_prompts=4",
        "quickstart algorithm=distill",
        "vlm_quickstart rewards.format.form=pattern rewards.format.pattern=(a|a)*b",
        "quickstart algorithm=draft",
        "vlm_quickstart runtime=ray rollout.engine=vllm rollout.vllm.python=/python "
        "rollout.vllm.sleep=true pools.train.processes=2",
        "quickstart validation.every=null validation.before=false validation.n=2",  # guidance, without training
    ],
)
def test_what_is_read_is_accepted(line):
    burnish.load(*line.split(" "))


VALUES = {
    "1e-4": 1e-4, "-2E+3": -2000.0, ".5": 0.5, "3": 3, "1_000": 1000, "true": True, "null": None, "~": None,
    "[a,b]": ["a", "b"], "yes": "yes", "off": "off", "12:30": "12:30", "010": "010", "2024-01-01": "2024-01-01",
    "'3'": "3", ".inf": float("inf"), "{a: 1e3}": {"a": 1e3}, "1e": "1e", "x#y": "x#y", "&x {b: [1, 2]}": {"b": [1, 2]},
}  # fmt: skip


@pytest.mark.parametrize("text", VALUES)
def test_values_are_read_as_people_mean_them_and_shown_as_they_are_read(text):
    from burnish.config.yaml_text import parse, show

    assert parse(text) == VALUES[text]
    assert type(parse(text)) is type(VALUES[text])
    assert parse(show(parse(text))) == parse(text)
    assert "\n" not in show(parse(text))


def test_rewards_are_added_changed_and_removed(recipe):
    config = burnish.load(recipe, "rewards.jpeg_compressibility.weight=0.1", "rewards.border_darkness=null")
    weights = {label: (reward.name, reward.weight) for label, reward in config.rewards.items()}
    assert weights == {"ocr": ("ocr", 1.0), "jpeg_compressibility": ("jpeg_compressibility", 0.1)}


@pytest.mark.parametrize(("rewards", "kept"), [
    ("{exact: {}}", {"exact": 1.0}),  # in the place of format and numeric
    ("{exact: {}, format: {}}", {"exact": 1.0, "format": 0.1}),
    ("{exact: {weight: 0}}", {"exact": 0.0, "format": 0.1, "numeric": 0.9}),  # watched beside them
    ("{format: {weight: 0.5}}", {"format": 0.5, "numeric": 0.9}),
])  # fmt: skip
def test_own_rewards_replace_those_of_the_extended_recipe(tmp_path, caplog, rewards, kept):
    own = tmp_path / f"{len(kept)}{len(rewards)}.yaml"
    own.write_text(f"extends: qwen25_vl/grpo\nrewards: {rewards}\n")
    assert {label: reward.weight for label, reward in burnish.load(str(own)).rewards.items()} == kept
    assert ("replace" in caplog.text) == ("numeric" not in kept)
    assert set(burnish.load("qwen25_vl/grpo", "rewards.exact.weight=0.2").rewards) == {"exact", "format", "numeric"}


def write(folder, name, text):
    (folder / name).write_text(text)
    return str(folder / name)


def test_a_recipe_is_laid_over_what_it_extends(recipe, tmp_path):
    """The recipe of the fixture has an algorithm with beta 0.5, and another number of steps for flow_grpo."""
    middle = write(tmp_path, "middle.yaml", "extends: small.yaml\nrollout: {n: 6}\nseed: 3\n")
    upper = write(tmp_path, "upper.yaml", "extends: middle.yaml\nseed: 4\nalgorithm: {kl_coef: 0.1}\n")
    assert (burnish.load(middle).rollout.n, burnish.load(middle).rollout.num_inference_steps) == (6, 8)
    config = burnish.load(upper, "rollout.n=5")
    assert (config.rollout.n, config.seed) == (5, 4)
    assert (config.algorithm.beta, config.algorithm.kl_coef) == (0.5, 0.1), "it is the same algorithm"
    other = write(tmp_path, "other.yaml", "extends: small.yaml\nalgorithm: {name: flow_grpo, clip: 1e-2}\n")
    config = burnish.load(other)
    assert (config.steps, config.algorithm.clip) == (40, 1e-2), "the variant, then the recipe's own option"
    back = burnish.load(other, "algorithm=diffusion_nft")
    assert (back.algorithm.beta, back.steps) == (0.5, 30)
    write(tmp_path, "lower.yaml", "extends: small.yaml\nrollout: {n: many}\n")
    with pytest.raises(ValueError, match=r"upper\.yaml") as error:
        burnish.load(write(tmp_path, "upper.yaml", "extends: lower.yaml\noptimizer: {lr: 0}\n"))
    assert [line.partition(" is ")[0] + line[-15:] for line in sorted(str(error.value).splitlines())] == [
        "optimizer.lr(in upper.yaml)", "rollout.n(in lower.yaml)",
    ]  # fmt: skip
    Path(recipe).write_text(Path(recipe).read_text().replace("n: 12", "n: 12, merge_lora: true"))
    assert burnish.load(recipe, "model.lora=null").model.lora is None, "an option that needs it may be in a recipe"


@pytest.mark.parametrize(("algorithm", "reward", "task"), [
    ("grpo", "exact", "image-text-to-text"),
    ("sft", "format", "image-text-to-text"), ("flow_grpo", "ocr", "text-to-image"),
])  # fmt: skip
def test_a_recipe_whose_names_belong_to_one_task_needs_not_say_which(tmp_path, algorithm, reward, task):
    text = f"model: {{path: a}}\ndata: {{train_files: a, val_files: b}}\nalgorithm: {algorithm}\n"
    assert burnish.load(write(tmp_path, "mine.yaml", f"{text}rewards: {{{reward}: {{}}}}\n")).task == task


def test_the_solver_of_mix_grpo_in_an_earlier_version_is_that_of_rollouts(tmp_path):
    from burnish.config import to_dict

    old = to_dict(burnish.load("quickstart", "algorithm=mix_grpo"))
    for solver, rollouts, validations in (("euler", "euler", None), ("dpm2", "dpm2m", "euler")):
        tree = old | {"algorithm": old["algorithm"] | {"solver": solver}}
        for section in ("rollout", "validation"):
            tree[section] = {name: value for name, value in old[section].items() if name != "solver"}
        found = burnish.load(write(tmp_path, "config.yaml", yaml.safe_dump(tree)))
        assert (found.rollout.solver, found.validation.solver) == (rollouts, validations)
    given = {"rollout": {"solver": "heun"}, "algorithm": {"name": "mix_grpo", "solver": "dpm2"}}
    assert burnish.load(write(tmp_path, "config.yaml", yaml.safe_dump(old | given))).rollout.solver == "heun"


@pytest.mark.parametrize(("depth", "bound", "lag"), [(0, None, 0), (1, None, 1), (3, 1, 1), (1, 3, 1), (2, 0, 0)])
def test_the_lag_is_the_smaller_of_depth_and_bound(depth, bound, lag):
    assert PipelineOptions(depth=depth, max_staleness=bound).lag == lag


AHEAD = ("runtime=ray", "pools.rollout.processes=1", "pipeline.depth=1")


@pytest.mark.parametrize(
    ("recipe_", "kind"), [("quickstart", "flow algorithm"), ("vlm_quickstart", "language algorithm")]
)
def test_samples_of_older_weights_are_corrected_unless_the_user_says_otherwise(recipe_, kind):
    for name in names(kind):
        if "rollout_correction" not in fields(lookup(kind, name)) or name == "distill":
            continue
        chosen = f"algorithm={name}"
        assert burnish.load(recipe_, chosen, *AHEAD).algorithm.rollout_correction.weights == "step", name
        assert burnish.load(recipe_, chosen).algorithm.rollout_correction is None
        assert (
            burnish.load(recipe_, chosen, *AHEAD, "algorithm.rollout_correction=null").algorithm.rollout_correction
            is None
        )
    own = burnish.load("vlm_quickstart", "algorithm={name: grpo, old_logprob: sampler}", *AHEAD).algorithm
    assert own.rollout_correction.mode == "bypass"
    upper = burnish.load("vlm_quickstart", "algorithm={name: grpo, rollout_correction: {upper: 3}}", *AHEAD).algorithm
    assert upper.rollout_correction.upper == 3


# of every option: an explanation, a range, and names that others have for it


def numbers(annotation, metadata=()):
    """The bounds of every number that an annotation allows."""
    if annotation in (int, float):
        yield [bound for one in metadata for bound in (one.metadata if isinstance(one, FieldInfo) else [one])]
    elif typing.get_origin(annotation) is typing.Annotated:
        inner, *more = typing.get_args(annotation)
        yield from numbers(inner, [*metadata, *more])
    elif typing.get_origin(annotation) is not typing.Literal:
        for inner in typing.get_args(annotation):
            yield from numbers(inner)


FREE = {"expires_at", "controller", "worker"}  # a moment, and options of a program that knows them


def test_every_option_is_explained_and_every_number_has_a_range():
    kinds = ("flow algorithm", "language algorithm", "flow reward", "language reward", "environment")
    classes = [type(burnish.load(recipe)) for recipe in ("quickstart", "vlm_quickstart")]
    classes += [lookup(kind, name) for kind in kinds for name in names(kind)]
    for cls in classes:
        assert cls.__doc__
        for _, (owner, name) in options_of(cls).items():
            assert explanation(owner, name), f"{owner.__name__}.{name} is not explained"
            for bounds in numbers(fields(owner)[name].annotation, fields(owner)[name].metadata):
                kept = {type(bound) for bound in bounds}
                assert name in FREE or (kept & {Ge, Gt} and kept & {Le, Lt}), f"{owner.__name__}.{name} has no range"
        assert dataclasses.is_dataclass(cls)


FOREIGN = {  # recipes that have the options between them, and the projects whose names those of ours stand for
    "language": (["vlm_quickstart"], ["vlm_quickstart", "algorithm=ppo"]),
    "flow": (["quickstart", "algorithm=flow_grpo"], ["quickstart"], ["quickstart", "algorithm=dgpo"]),
}


@cache
def refused(recipe: str, *given: str) -> str:
    try:
        burnish.load(recipe, *given)
    except ValueError as error:
        return str(error)
    return ""


def test_every_option_of_another_trainer_leads_to_one_of_ours_that_is_accepted(capsys):
    from burnish.config.foreign import PROJECTS, ours_and_remark, table
    from burnish.config.hardware import WORDS
    from tools.foreign_names import PAGE, written

    for project, entries in table().items():
        halves = [half for half, projects in PROJECTS.items() if project in projects]
        for theirs, entry in entries.items():
            ours = [one for one in ours_and_remark(entry)[0] if one]
            for command in [one for one in ours if one.startswith("burnish ")]:
                accept(command.replace("RECIPE", "vlm_quickstart"))
            given = [one if "=" in one else f"{one}=null" for one in ours if not one.startswith("burnish ")]
            given = [one for one in given if one.partition("=")[0] not in (*WORDS, "nodes")]
            said = [refused(*recipe, *given) for half in halves for recipe in FOREIGN[half]]
            known = [text for text in said if "there is no such option" not in text]
            assert known or not given, f"{project}: {theirs}: {said[0]}"
            values = tuple(one for one in given if not one.endswith("=null"))
            assert project == "UniRL" or not all(refused(*one, *values) for half in halves for one in FOREIGN[half]), (
                theirs
            )
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python tools/foreign_names.py"
