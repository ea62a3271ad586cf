"""Every algorithm with every kind of transition on every family: one real update, or a refusal that says why."""

import math
from typing import get_args

import pytest
import torch
from PIL import Image

from burnish.config import load
from burnish.config.text import fields
from burnish.flow.transitions import Kind
from burnish.loop import run
from burnish.registry import lookup, names
from burnish.tasks import assemble
from burnish.utils.errors import ConfigError
from tests.support.factory import tiny_flux, tiny_pipeline
from tests.support.tiny_recipes import flow_recipe, write_lines, write_recipe, write_rewards

ALGORITHMS = names("flow algorithm")
FAMILIES = {"sd3": tiny_pipeline, "flux": tiny_flux}
KINDS = [None, *get_args(Kind)]  # None: as the algorithm comes
# where an algorithm's own setting does not fit into the three steps of the recipe and four samples
SMALLER = {
    "branch_grpo": ["algorithm.splits=[0, 1]"],
    "flow_grpo_fast": ["algorithm.window={kind: random, size: 1}"],
    "mix_grpo": ["algorithm.window={kind: progressive, size: 1}"],
}


def has_transition(algorithm: str) -> bool:
    return "transition" in fields(lookup("flow algorithm", algorithm))


def own(algorithm: str) -> str:
    """The transition that an algorithm comes with."""
    return fields(lookup("flow algorithm", algorithm))["transition"].default


def cells():
    """Every kind of transition on one family, which no transition knows, and each algorithm's own on the others."""
    for family in FAMILIES:
        for algorithm in ALGORITHMS:
            for kind in KINDS:
                if kind is not None or not has_transition(algorithm):
                    again = family != next(iter(FAMILIES)) and has_transition(algorithm) and kind != own(algorithm)
                    yield pytest.param(
                        algorithm, kind, family, id=f"{algorithm}-{kind or 'own'}-{family}",
                        marks=pytest.mark.thorough if again else (),
                    )  # fmt: skip


def trains_all_weights(algorithm: str, kind: str | None, family: str) -> bool:
    """Full weights and adapters in turn, so that every algorithm has both."""
    return (ALGORITHMS.index(algorithm) + KINDS.index(kind) + list(FAMILIES).index(family)) % 2 == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("matrix")
    for family, make in FAMILIES.items():
        make(folder / family, vae=False)
    write_rewards(folder)
    Image.new("RGB", (8, 8), "white").save(folder / "white.png")
    (folder / "prompts.txt").write_text("a cat\ntwo dogs\n")
    write_lines(folder / "pictures.jsonl", [{"prompt": "a cat", "image": "white.png"}])
    for family in FAMILIES:
        write_recipe(folder / f"{family}.yaml", flow_recipe(folder, family) | {"steps": 1})
    return folder


def configure(folder, algorithm: str, kind: str | None, family: str):
    """The configuration of a cell, smaller where the algorithm's own defaults do not fit."""
    given = [f"algorithm={algorithm}", *SMALLER.get(algorithm, [])]
    if "train_timesteps" in fields(lookup("flow algorithm", algorithm)):
        given.append("algorithm.train_timesteps=2")
    if kind is not None:
        given.append(f"algorithm.transition={kind}")
    if trains_all_weights(algorithm, kind, family):
        given.append("model.lora=null")
    needs = lookup("flow algorithm", algorithm)().needs()
    if needs.reward_gradients:
        given += ["rewards.brightness=null", "rewards.border_darkness.weight=-1"]
    if needs.data == "pictures":
        given += [f"data.train_files={folder / 'pictures.jsonl'}", f"data.val_files={folder / 'prompts.txt'}"]
    return load(str(folder / f"{family}.yaml"), given)


def refusal(algorithm: str, kind: str | None) -> list[str]:
    """Words of the sentence that refuses a cell; none where it must run."""
    if kind is None:
        return []
    option = f"algorithm.transition is {kind}"
    if not has_transition(algorithm):
        return [option, f"{algorithm}, which this run uses, never reads it"]
    choices = get_args(fields(lookup("flow algorithm", algorithm))["transition"].annotation)
    if kind in choices:
        return []
    return [option, "no probability" if kind == "ode" else "it must be one of"]


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "kind", "family"), cells())
def test_a_cell_runs_or_is_refused(algorithm, kind, family, folder):
    words = refusal(algorithm, kind)
    if words:
        with pytest.raises(ConfigError) as error:
            configure(folder, algorithm, kind, family)
        assert all(word in str(error.value) for word in words), str(error.value)
        return
    assembly = assemble(configure(folder, algorithm, kind, family))
    assembly.check_data()
    assembly.check()
    before = {name: value.detach().clone() for name, value in assembly.roles.parameters().items()}
    told = {}
    run(
        [1], assembly.source, assembly.workers, [lambda _, metrics: told.update(metrics)],
        watch=assembly.watch, stop=lambda: False,
    )  # fmt: skip
    assert told["actor/skipped_updates"] == 0
    assert [name for name, value in told.items() if not math.isfinite(value)] == []
    moved = [name for name, value in assembly.roles.parameters().items() if not torch.equal(value, before[name])]
    assert moved, "no weight has moved"


def test_every_algorithm_trains_adapters_and_all_weights():
    for algorithm in ALGORITHMS:
        ways = {
            trains_all_weights(algorithm, kind, family)
            for family in FAMILIES
            for kind in KINDS
            if not refusal(algorithm, kind) and (kind is not None or not has_transition(algorithm))
        }
        assert ways == {True, False}, algorithm
