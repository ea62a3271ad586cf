"""What options a run gets: defaults, recipes, variants, the command line, and what one option decides about others."""

import dataclasses
import re
from pathlib import Path

import pytest

import burnish
from burnish.config.foreign import projects, shown, trainers
from burnish.config.yaml_text import parse
from burnish.registry import lookup, names
from tests.config.test_recipes import value_of
from tests.support.command_lines import accept, is_option
from tests.support.tiny_run import burnish as command

SAVED = parse((Path(__file__).parent / "saved.yaml").read_text())


@pytest.mark.parametrize("case", SAVED, ids=lambda case: " ".join(case["options"]))
def test_what_options_decide_is_saved_and_loads_again(recipe, tmp_path, case):
    """Defaults, then recipe, then variant, then command line, in any order."""
    recipe, options, values = case.get("recipe", recipe), case["options"], case["values"]
    config = burnish.load(recipe, *options)
    assert {option: value_of(config, option) for option in values} == values
    (tmp_path / "saved.yaml").write_text(text := command("config", recipe, *options).out)
    assert not re.search("[^#\n]{71}#", text), "words stand above long lines"
    assert burnish.load(str(tmp_path / "saved.yaml")) == config


@pytest.mark.parametrize(("rewards", "kept"), parse((Path(__file__).parent / "own_rewards.yaml").read_text()))
def test_own_rewards_replace_those_of_the_extended_recipe(tmp_path, caplog, rewards, kept):
    own = tmp_path / f"{len(kept)}{len(rewards)}.yaml"
    own.write_text(f"extends: qwen25_vl/grpo\nrewards: {rewards}\n")
    assert {label: reward.weight for label, reward in burnish.load(str(own)).rewards.items()} == kept
    assert ("replace" in caplog.text) == ("numeric" not in kept)
    assert set(burnish.load("qwen25_vl/grpo", "rewards.exact.weight=0.2").rewards) == {"exact", "format", "numeric"}
    assert burnish.load("sd35/gardo", "algorithm.lagged={}").algorithm.lagged == {}  # where the recipe has some


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
    told = "algorithm: sft\nmodel: {path: a}\ndata: {train_files: b.jsonl}\nrewards: {mine: {name: exact}}\n"
    assert burnish.load(write(tmp_path, "own.yaml", told)).task == "image-text-to-text", "others have no such reward"
    write(tmp_path, "lower.yaml", "extends: small.yaml\nrollout: {n: many}\n")
    with pytest.raises(ValueError, match=r"upper\.yaml") as error:
        burnish.load(write(tmp_path, "upper.yaml", "extends: lower.yaml\noptimizer: {lr: 0}\n"))
    assert [line.partition(" is ")[0] + line[-15:] for line in sorted(str(error.value).splitlines())] == [
        "optimizer.lr(in upper.yaml)", "rollout.n(in lower.yaml)",
    ]  # fmt: skip


AHEAD = ("runtime=ray", "pools.rollout.processes=1", "async_rollout.depth=1")


@pytest.mark.parametrize(
    ("recipe_", "kind"), [("quickstart", "flow algorithm"), ("vlm_quickstart", "language algorithm")]
)
def test_samples_of_older_weights_are_corrected_unless_the_user_says_otherwise(recipe_, kind):
    for name in names(kind):
        chosen = f"algorithm={name}"
        options = {field.name for field in dataclasses.fields(lookup(kind, name))}
        if "rollout_correction" not in options or name in ("distill", "gold"):
            continue
        correction = burnish.load(recipe_, chosen, *AHEAD).algorithm.rollout_correction
        assert (correction.weights, correction.mode) == ("step", "decoupled"), name
        assert burnish.load(recipe_, chosen).algorithm.rollout_correction is None
        off = burnish.load(recipe_, chosen, *AHEAD, "algorithm.rollout_correction=null")
        assert off.algorithm.rollout_correction is None
    own = ("algorithm=" + ("grpo" if "vlm" in recipe_ else "flow_grpo"), "algorithm.old_logprob=sampler")
    assert burnish.load(recipe_, *own, *AHEAD).algorithm.rollout_correction.mode == "bypass"


def test_every_option_of_another_trainer_leads_to_one_of_ours():
    table = {f"{one}: {name}": entry for one in projects() for name, entry in trainers()[one].names.items()}
    assert len(table) > 200
    wrong = []
    for theirs, (ours, remark) in ((theirs, shown(entry)) for theirs, entry in table.items()):
        for span in [*ours, *re.findall(r"`([^`]+)`", remark)]:
            if span.startswith("burnish "):
                accept(span.replace("RECIPE", "vlm_quickstart"))
            elif re.fullmatch(r"[a-z_]+(\.\w+)+(=.*)?", span) and not is_option(span.partition("=")[0]):
                wrong.append(f"{theirs}: {span}")
    assert wrong == []
