"""Options of algorithms: what contradicts itself is refused, all others do something, and parts are chosen by name."""

import dataclasses
import re
from functools import cache
from types import SimpleNamespace
from typing import get_args, get_origin, get_type_hints

import pytest
import torch

import burnish
from burnish.config.checks import problems
from burnish.registry import lookup, names, register
from burnish.rl.advantages import Advantages, Rewards
from burnish.rl.algorithm import advantages_of
from burnish.types.rollout import Scores
from burnish.utils.errors import ConfigError
from tests.golden.language import REWARD_MODELS, RUNS
from tests.support.language_tables import observed

AVERAGE = {"average": {"decay": "linear", "linear": (0, 0.0, 3e-4, 0.3)}}
REJECTED = {"reject": "token_k1", "reject_above": 1.5}
MOVING = {"kind": "progressive", "size": 1}
TWO = {"reject": ["token_k1", "token_k2"]}
# of generators: options, and what the message names
FLOW = [
    ("awm", {"time_shift": 3.0}, "times is schedule"), ("awm", {"time_stratified": True}, "time_stratified"),
    ("awm", {"advantage_clip": 1.0, "advantage_clip_low": 1.0}, "advantage_clip_low"), ("awm", {"clip": 1.5}, "clip"),
    ("awm", {"old": {"decay": "linear"}}, "linear"), ("awm", {"old": {"linear": (0, 0.1, 0.1, 1.0)}}, "linear"),
    ("awm", {"old": {"counts": "updates"}}, "decay is copy"), ("awm", {"time_range": (0.5, 0.5)}, "time_range"),
    ("awm", {"ghuber_power": 0.5}, "ghuber_power"), ("awm", {"old": {"decay": "ema"}}, "ema is null"),
    ("awm", {"sample_with": "slow"}, "sample_with is 'slow'"), ("dgpo", {"lagged": AVERAGE}, "lagged has average"),
    ("awm", {"anchor": "policy", "old_kl_coef": 1.0}, "anchor is 'policy'"), ("dgpo", {"clip_kl": True}, "clip_kl"),
    ("awm", {"anchor": "average", "lagged": AVERAGE}, "old_kl_coef is 0"),
    ("dgpo", {"lagged": {"old": {}}}, "lagged has 'old'"),
    ("awm", {"lagged": {"slow": {"kl_limit": 1.0}}, "sample_with": "slow"}, "no KL to this policy"),
    ("dgpo", {"lagged": {"A b": {}}, "sample_with": "A b"}, "A b"), ("crd", {"kl_guidance": 2.0}, "kl_coef is 0"),
    ("dgpo", {"lagged": {"slow": {"decay": "linear"}}, "sample_with": "slow"}, "linear"),
    ("dgpo", {"baseline": "old", "reference_guidance": 2.0}, "reference_guidance"),
    ("awm", {"lagged": {"reference": {}}}, "lagged has reference"), ("sft", {"best": 2}, "online is false"),
    ("awm", {"lagged": {"reference": {}}, "kl_coef": 0.1, "sample_with": "reference"}, "sample_with is 'reference'"),
    ("dgpo", {"clip_kl": True, "clip": None, "kl_coef": 0.1}, "clip_kl"), ("distill", {"kl_form": "exact"}, "kl_form"),
    ("crd", {"baseline": "reference", "old": {"decay": "ema", "ema": 0.5}}, "old policy"),
    ("diffusion_dpo", {"kind": "ipo", "label_smoothing": 0.1}, "label_smoothing"),
    ("distill", {"teachers": []}, "teachers"),
    ("tdm_r1", {"real_weight": 1.0, "reward_steps": 2}, "reward_steps"), ("draft", {"renoised": 4}, "renoised"),
    ("distill", {"objective": "distill_kl"}, "std"), ("distill", {"noise_level": 0.3}, "noise_level"),
    ("draft", {"kind": "refl", "last_steps": 2}, "last_steps"), ("srpo", {"time_range": (0.5, 1.0)}, "time_range"),
    ("draft", {"kind": "refl", "window": {}}, "window.size"), ("flow_grpo", {"transition": "ode"}, "ode"),
    ("draft", {"kind": "refl", "renoise_level": 0.1}, "renoise_level"), ("branch_grpo", {"splits": [2, 0]}, "splits"),
    ("mix_grpo", {"window": {}}, "window.kind is all"), ("grpo_guard", {"logprob": "squared_error"}, "squared_error"),
    ("mix_grpo", {"window": {"kind": "random", "size": 2}, "steps_after": 0.5}, "shared_by"),
    ("grpo_guard", {"old_logprob": "sampler"}, "old_logprob"), ("branch_grpo", {"shared_noise": False}, "shared_noise"),
    ("flow_dppo", {"rollout_correction": {"mode": "bypass"}}, "mode"), ("branch_grpo", {"best_of": 2}, "leaf_pruning"),
    ("branch_grpo", {"window": MOVING}, "window.kind"), ("branch_grpo", {"leaf_pruning": "extreme"}, "keep_leaves"),
    ("branch_grpo", {"advantage_std": "global"}, "advantage_std"), ("flow_grpo", {"best_of": 1}, "best_of"),
    ("branch_grpo", {"skip_depths": 3}, "skip_depths is 3"), ("flow_grpo", {"advantage": "gae"}, "gae"),
    ("flow_grpo", {"rollout_correction": {"mode": "decoupled"}, "old_logprob": "sampler"}, "old_logprob"),
    ("flow_grpo", {"rollout_correction": {"mode": "bypass"}, "old_logprob": "recompute"}, "old_logprob"),
    ("flow_grpo", {"surrogate": "reinforce", "old_logprob": "sampler"}, "old_logprob"),
    ("flow_dppo", {"surrogate": "gspo"}, "surrogate"),
]  # fmt: skip
LANGUAGE = [
    ("grpo", {"clip": 1.5}, "clip"), ("grpo", {"dual_clip": 1.0}, "dual_clip"),
    ("grpo", {"loss_length": 3}, "loss_length is 3"),
    ("grpo", {"advantage_std": "none", "advantage_eps": 0.1}, "advantage_eps"),
    ("grpo", {"kl": {"route": "reward", "kind": "k3+"}}, "k3"), ("grpo", {"kl": {"controller": "adaptive"}}, "target"),
    ("grpo", {"kl": {"target": 0.1}}, "target"), ("cpgd", {"clip": 1.0}, "clip"),
    ("grpo", {"high_entropy_per": "sequence"}, "high_entropy_fraction"),
    ("grpo", {"high_entropy_count": "selected", "high_entropy_fraction": 0.5, "loss_agg_mode": "seq-mean-token-sum"},
    "count"),
    ("grpo", {"advantage_clip": 1.0, "advantage_clip_low": 1.5}, "advantage_clip_low"),
    ("grpo", {"reward_clip": 1.0, "reward_clip_low": 1.0}, "reward_clip_low"), ("grpo", {"advantage": "gae"}, "gae"),
    ("ipo", {"label_smoothing": 0.1}, "label_smoothing"),
    ("kto", {"online": False, "threshold": 0.0}, "threshold is 0"), ("sft", {"best": 2}, "online is false"),
    ("sft", {"min_reward": 0.5}, "online is false"), ("gdpo", {"reward_norm": True}, "reward_norm"),
    ("gdpo", {"overlong": {"buffer": 3}}, "overlong"), ("simpo", {"reference_free": False}, "reference_free"),
    ("mpo", {"reference_free": True}, "reference_free"), ("reinforce", {"old_logprob": "sampler"}, "old_logprob"),
    ("remax", {"overlong": {"buffer": 3}}, "overlong"), ("distill", {"jsd_mix": 0.2}, "jsd_mix"),
    ("grpo", {"rollout_correction": {"measure": "mean"}}, "measure"),
    *(("grpo", {"rollout_correction": options}, named) for options, named in [
        ({"upper": 1.0, "lower": 2.0}, "lower"), ({"weights": "none"}, "weights"),
        ({"reject": "token_k1"}, "reject_above is null"),
        ({"weights": "none", "reject": "token_k1", "reject_above": 2.0, "upper": 3.0}, "upper"),
        ({"reject_above": 2.0}, "reject is null"),
        ({"reject": "token_k3", "reject_above": 2.0, "reject_below": 0.5}, "k1"),
        ({"reject": "token_k1", "reject_above": 2.0, "reject_below": 3.0}, "reject_below"),
        (TWO | {"reject_above": 2.0}, "2 rules"),
        (TWO | {"reject_above": [2.0], "reject_below": [0.5]}, "reject"),
        (TWO | {"reject_above": [2.0, 3.0], "reject_below": [None, 0.5]}, "k1"),
    ]),
]  # fmt: skip
REFUSED = [("flow", *row) for row in FLOW] + [("language", *row) for row in LANGUAGE]


@pytest.mark.parametrize(("half", "name", "options", "named"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_contradicts_itself_or_is_never_read_is_refused(half, name, options, named):
    with pytest.raises(ValueError, match=named):
        raise ConfigError(problems(alone(f"{half} algorithm", name, options), ()))


def alone(kind, name, options):
    """An algorithm as a run of its own, with what its options ask of a run."""
    made = lookup(kind, name)(**options)
    vars(made).update({"online": True, "data": SimpleNamespace(scores=None), "samples": 8, "longest": 9} | vars(made))
    return made


# of language models, what no golden run sets: another value than the default, or what it is read with and two values
OTHERS = {
    "advantage": {"name": "returns", "gamma": 0.3}, "advantage_aggregation": "gdpo", "advantage_clip_low": -0.1,
    "advantage_eps": 0.5, "advantage_trimmed_ratio": 0.5, "advantage_unbiased": False, "beta": 0.7, "clip_high": 0.05,
    "cov_coef": 0.5, "distill_coef": 0.5, "divergence_limit": 0.02, "drift_coef": 0.5, "margins": False,
    "preference_weight": 0.5, "quality_weight": 0.5, "question": "Is this {prompt}?",
    "reward_clip_low": 0.6, "separator": ";", "surrogate": {"name": "sapo", "tau_neg": 7.0}, "target_margin": 0.1,
    "tau_neg": 2.0, "tau_pos": 2.0, "undesirable_weight": 2.0, "value_coef": 2.0, "kind": ({}, "mse", "bce"),
    "cov_high": ({"cov_low": -5.0, "cov_fraction": 1.0}, 5.0, -1.0),
    "high_entropy_per": ({"high_entropy_fraction": 0.5}, "batch", "sequence"),
    "jsd_mix": ({"divergence": "jsd"}, 0.5, 0.2), "min_reward": ({"online": True}, 0.0, 0.95),
    "overlong.factor": ({}, {"buffer": 3}, {"buffer": 3, "factor": 0.5}),
    "rollout_correction.reject_below": ({}, REJECTED, REJECTED | {"reject_below": 0.9}),
}  # fmt: skip


def in_golden_runs():
    """Options that a golden run sets, whose numbers tell if one is not read any more."""
    found = set()
    for _, given in [*RUNS.values(), *REWARD_MODELS.values()]:
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
        more, *both = OTHERS[path] if isinstance(OTHERS[path], tuple) else ({}, getattr(kind, first), OTHERS[path])
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
