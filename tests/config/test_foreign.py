"""Options of other trainers: every entry of the table leads to an option of ours, and its value is accepted."""

from __future__ import annotations

import re
from functools import cache

import pytest

from burnish.config import load
from burnish.config.complaints import every_option
from burnish.config.foreign import PROJECTS, foreign_name, ours_and_remark, table
from burnish.config.hardware import WORDS
from burnish.config.load import context_of
from burnish.utils.errors import ConfigError
from tests.support.command_lines import accept
from tools.foreign_names import PAGE, written

# recipes that have the options between them
RECIPES = {
    "language": (["vlm_quickstart"], ["vlm_quickstart", "algorithm=ppo"]),
    "flow": (["quickstart", "algorithm=flow_grpo"], ["quickstart"], ["quickstart", "algorithm=dgpo"]),
}
REWARD = "rewards.function.path=my_rewards.py:score"


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    return {
        half: {one for recipe, *given in recipes for one in every_option(context_of(recipe, [*given, REWARD]))}
        for half, recipes in RECIPES.items()
    }


def halves(project: str) -> list[str]:
    return [half for half, projects in PROJECTS.items() if project in projects]


@pytest.mark.parametrize("project", list(table()))
def test_every_entry_names_an_option_that_exists(project, known):
    for theirs, entry in table()[project].items():
        for ours in ours_and_remark(entry)[0]:
            option = ours.partition("=")[0]
            if ours.startswith("burnish "):
                accept(ours.replace("RECIPE", "vlm_quickstart"))
            else:
                there = any(option in known[half] for half in halves(project))
                made = option.startswith("rewards.")  # a reward by name, which loads below
                assert there or made or option in WORDS or option == "nodes", f"{project}: {theirs}: {ours}"


def test_every_value_is_accepted():
    given = {
        (project, tuple(one for one in ours_and_remark(entry)[0] if "=" in one))
        for project, entries in table().items()
        for entry in entries.values()
    }
    for values, projects in {values: [one for one, its in given if its == values] for _, values in given}.items():
        for half in {half for project in projects for half in halves(project)}:
            refusals = [refusal for recipe, *others in RECIPES[half] if (refusal := refused(recipe, *others, *values))]
            both = values and set(projects) == {"UniRL"}  # some of its options are of one half
            assert both or len(refusals) < len(RECIPES[half]), f"{projects}: {values}: {refusals[0]}"


@cache
def refused(recipe: str, *given: str) -> str:
    try:
        load(recipe, given)
    except ConfigError as error:
        return str(error)
    return ""


def test_the_page_shows_the_table():
    page = PAGE.read_text(encoding="utf-8")
    assert written(page) == page, "run: python tools/foreign_names.py"
    assert re.findall(r"<!-- names: (\S+) -->", page) == list(table())


@pytest.mark.parametrize(("half", "project"), [
    (half, project) for half, projects in PROJECTS.items() for project in projects
])  # fmt: skip
def test_every_name_is_refused_with_ours(half, project):
    recipe, *given = RECIPES[half][0]
    context = context_of(recipe, given)
    valid = {*every_option(context), *WORDS}
    for theirs in table()[project].keys() - valid:
        said = foreign_name(theirs, half, short=True)
        options = {
            ours for one in (*PROJECTS[half], project) for ours in ours_and_remark(table()[one].get(theirs, ""))[0]
        }
        assert any(ours and ours in said for ours in options), theirs


@pytest.mark.parametrize(("given", "said"), [
    ("actor_rollout_ref.actor.ppo_mini_batch_size=4", "verl's name; here it is trainer.mini_batch_size"),
    ("ppo_epochs=2", "verl's name actor_rollout_ref.actor.ppo_epochs; here it is trainer.epochs"),
    ("kl_loss_coef=0.1", "here it is algorithm.kl.coef"),
    ("num_generations=8", "TRL's name; here it is rollout.n"),
    ("peft_config={r: 16}", "TRL's name peft_config; here it is model.lora"),
    ("worker.rollout.top_p=0.9", "EasyR1's name; here it is rollout.top_p"),
    ("algorithm.adv_estimator=grpo", "verl's name; here it is algorithm.name=rloo"),
])  # fmt: skip
def test_a_command_line_in_anothers_words(given, said):
    with pytest.raises(ConfigError) as error:
        load("vlm_quickstart", [given])
    assert said in str(error.value)
    assert given.split("={")[0].partition("=")[0] in str(error.value)


def test_a_recipe_in_anothers_words(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("extends: quickstart\nsample: {num_steps: 10}\n")
    with pytest.raises(ConfigError, match=r"sample.num_steps is flow_grpo's name; here it is rollout.num_inference"):
        load(str(recipe))


def test_a_slip_in_our_own_words_is_no_foreign_name():
    with pytest.raises(ConfigError, match=r"did you mean optimizer.lr"):
        load("vlm_quickstart", ["lr=1e-3"])
