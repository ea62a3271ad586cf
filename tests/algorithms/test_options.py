"""Options of algorithms: what contradicts itself is refused, all others do something, and parts are chosen by name."""

import dataclasses
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_origin, get_type_hints

import pytest
import torch
import yaml

import burnish
from burnish.config.checks import problems
from burnish.diffusion.algorithms.base import Needs, Teacher
from burnish.options import OptimizerOptions
from burnish.registry import lookup, names, register
from burnish.rl.advantages import Advantages, Rewards
from burnish.rl.algorithm import advantages_of
from burnish.types.rollout import Scores
from burnish.utils.errors import ConfigError
from tests.golden.runs import HALVES
from tests.support.language_tables import observed

TABLE = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
REFUSED = [(half, *row) for half, rows in TABLE.items() for row in rows]


@pytest.mark.parametrize(("half", "name", "options", "named"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_contradicts_itself_or_is_never_read_is_refused(half, name, options, named):
    with pytest.raises(ValueError, match=named):
        raise ConfigError(problems(alone(f"{half} algorithm", name, options), ()))


def alone(kind, name, options):
    """An algorithm as a run of its own, with what its options ask of a run."""
    made = lookup(kind, name)(**options)
    vars(made).update({"online": True, "data": SimpleNamespace(scores=None), "samples": 8, "longest": 9} | vars(made))
    return made


OTHERS = yaml.safe_load(Path(__file__).with_name("others.yaml").read_text())


def in_golden_runs():
    """Options that a golden run sets, whose numbers tell if one is not read any more."""
    found = set()
    for _, given in [*HALVES["language"].values(), *HALVES["reward_models"].values()]:
        for option in given:
            name, _, value = option.partition("=")
            found.add(name.removeprefix("algorithm."))
            found |= {f"{name.removeprefix('algorithm.')}.{inner}" for inner in re.findall(r"(\w+):", value)}
    return found


def fields(kind):
    return {field.name: field for field in dataclasses.fields(kind)}


def options_of(kind, prefix=""):
    """Dotted names of all options of a class; a list of classes is one option."""
    found = []
    for name, hint in get_type_hints(kind).items():
        if name in fields(kind):
            inner = [one for one in (hint, *get_args(hint)) if dataclasses.is_dataclass(one)]
            nested = inner and get_origin(hint) is not list
            found += [prefix + name, *(options_of(inner[0], f"{prefix}{name}.") if nested else [])]
    return found


@cache
def takers():
    """The algorithms that take an option."""
    found = {}
    for name in names("language algorithm"):
        for path in options_of(lookup("language algorithm", name)):
            found.setdefault(path, []).append(name)
    return found


@pytest.mark.parametrize("path", sorted(takers().keys() - in_golden_runs()))
def test_every_option_changes_what_is_learned(path):
    """Of the first algorithm that takes the other value."""
    first, tried = path.partition(".")[0], []
    for name in takers()[path]:
        kind = lookup("language algorithm", name)
        known = fields(kind)
        base = {"pass_k": 1, "pass_reward": 0.5} if "pass_k" in known else {}  # groups of three responses
        base |= {"reward_coef": 1.0} if "reward_coef" in known and first != "reward_coef" else {}
        if "old_logprob" in known and first not in ("old_logprob", "rollout_correction"):
            base["old_logprob"] = "sampler"  # else nothing is far enough from the policy to be clipped
        more, *both = OTHERS[path] if isinstance(OTHERS[path], list) else ({}, getattr(kind, first), OTHERS[path])
        base |= {one: value for one, value in more.items() if one in known}
        values = [{first: value} for value in both]
        try:
            before, after = (kind(**base | value) for value in values)
        except ValueError as error:
            tried.append(f"{name}: {error}")
            continue
        assert repr(observed(before)) != repr(observed(after)), name
        return
    raise AssertionError(tried)


@pytest.mark.parametrize(("recipe", "name"), [("quickstart", "flow_grpo"), ("vlm_quickstart", "grpo")])
def test_parts_are_chosen_by_name_alone_or_with_options(recipe, name):
    own = ["algorithm.surrogate={name: sapo, tau_neg: 2}", "algorithm.advantage={name: returns, gamma: 0.5}"]
    one = burnish.load(recipe, f"algorithm={name}", *own).algorithm
    assert (one.surrogate.tau_neg, one.advantage.gamma) == (2.0, 0.5)
    others = ["algorithm.surrogate=gspo", "algorithm.advantage=leave_one_out"]
    one = burnish.load(recipe, f"algorithm={name}", *others).algorithm
    assert (one.surrogate.name, one.advantage.name) == ("gspo", "leave_one_out")
    assert one.clip == type(one)().clip, "what a recipe says of a part that another takes the place of is left out"


def test_what_samples_needs_no_other_network():
    assert [Teacher(**given).is_start for given in ({}, {"path": "a"}, {"lora": "a"})] == [True, False, False]
    networks = {"fake": None, "old": OptimizerOptions()}
    needs = Needs(sampler="old", lagged=("old", "other"), networks=networks, reference=True, teachers=(Teacher(),))
    assert needs.to_sample() == Needs(sampler="old", lagged=("old",), networks={"old": None})
    for sampler, baseline, kept in (("old", "reference", 1), ("policy", "reference", 0), ("policy", "old", 1)):
        made = lookup("flow algorithm", "crd")(baseline=baseline, sample_with=sampler)
        assert made.needs().lagged == ("old",) * kept


def test_an_advantage_of_a_wrong_shape_is_named():
    @register("advantage", "own_odd")
    def own_odd(rewards: Rewards) -> torch.Tensor:
        """One sample too few."""
        return rewards.reward[:-1]

    reward, none = torch.arange(4.0), torch.zeros(4).bool()
    scores = Scores(reward=reward, missing=none, components=reward[:, None], names=("r",), notes=[""] * 4)
    with pytest.raises(ValueError, match=r"\[3\].*\[4\]"):
        advantages_of(lookup("flow algorithm", "flow_grpo")(advantage="own_odd"), Rewards.of(scores, none.long(), 3))
    given = Advantages.of(reward, torch.tensor([[True, False]] * 3 + [[False, False]]))  # what has no reward gets none
    assert given.advantage.tolist() == [[0, 0], [1, 0], [2, 0], [0, 0]]
