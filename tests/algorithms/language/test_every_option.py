"""Every option of every language algorithm does something: another value can be seen in what is learned."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_origin

import pytest

from burnish.config.text import fields
from burnish.registry import lookup, names
from tests.support.language_tables import observed

KL = {"kl": {"coef": 0.1}}
ADAPTIVE = {"kl": {"coef": 0.1, "controller": "adaptive", "target": 0.1, "horizon": 100.0}}
CORRECTED = {"rollout_correction": {"upper": 1.2}}
REJECTED = {"rollout_correction": {"reject": "token_k1", "reject_above": 1.5}}
FILTERED = {"weighting": "clip_filter"}
BY_CONSTANT = {"loss_agg_mode": "seq-mean-token-sum-norm"}
ONLINE = {"online": True}

# an option: what it is read with, and another value of it
CHANGES: dict[str, tuple[dict[str, Any], Any]] = {
    "advantage": ({}, {"name": "returns", "gamma": 0.3}),
    "advantage_aggregation": ({}, "gdpo"),
    "advantage_clip": ({}, 0.1),
    "advantage_clip_low": ({}, -0.1),
    "advantage_eps": ({}, 0.5),
    "advantage_std": ({}, "none"),
    "advantage_trimmed_ratio": ({}, 0.5),
    "advantage_unbiased": ({}, False),
    "average_log_prob": ({}, None),  # the other one
    "best": (ONLINE, 2),
    "beta": ({}, 0.7),
    "center_coef": ({}, 0.3),
    "clip": ({}, 0.1),
    "clip_high": ({}, 0.05),
    "cov_coef": ({}, 0.5),
    "cov_fraction": ({"cov_low": -5.0}, 0.5),
    "cov_high": ({"cov_low": -5.0, "cov_fraction": 1.0}, -1.0),
    "cov_low": ({"cov_fraction": 1.0}, 0.2),
    "desirable_weight": ({}, 2.0),
    "divergence": ({"divergence_limit": 0.02}, "kl"),
    "divergence_limit": ({}, 0.02),
    "distill_coef": ({}, 0.5),
    "drift_clip": ({"drift_coef": 0.5}, 0.05),
    "drift_coef": ({}, 0.5),
    "dual_clip": ({}, 1.1),
    "entropy_coef": ({}, 0.1),
    "gamma": ({}, 0.5),
    "heads": ({}, ["a", "b"]),
    "high_entropy_count": ({"high_entropy_fraction": 0.5, "loss_agg_mode": "token-mean"}, "selected"),
    "high_entropy_fraction": ({}, 0.5),
    "high_entropy_per": ({"high_entropy_fraction": 0.5}, "sequence"),
    "kind": ({}, None),
    "jsd_mix": ({"divergence": "jsd"}, 0.2),
    "kl": ({}, {"coef": 0.1}),
    "kl.coef": (KL, 0.2),
    "kl.controller": (ADAPTIVE, {"kl": KL["kl"]}),  # target and horizon go with it
    "kl.horizon": (ADAPTIVE, 50.0),
    "kl.kind": (KL, "k2"),
    "kl.refresh_every": (KL, 1),
    "kl.route": (KL, "reward"),
    "kl.target": (ADAPTIVE, 100.0),
    "label_smoothing": ({}, 0.1),
    "lam": ({}, 0.5),
    "loss_agg_mode": ({}, "seq-mean-token-sum"),
    "loss_length": (BY_CONSTANT, 7),
    "margins": ({}, None),
    "mask_truncated": ({}, True),
    "min_margin": ({}, 0.95),
    "min_reward": (ONLINE, 0.95),
    "old_logprob": ({}, "sampler"),
    "online": ({}, None),
    "over": ({}, "sampled"),
    "overlong": ({}, {"buffer": 3}),
    "overlong.buffer": ({"overlong": {"buffer": 3}}, 4),
    "overlong.factor": ({"overlong": {"buffer": 3}}, 0.5),
    "pass_k": ({}, 2),
    "pass_reward": ({}, 1.0),
    "preference_weight": ({}, 0.5),
    "quality_weight": ({}, 0.5),
    "question": ({}, "Is this {prompt}?"),
    "ratio_limit": ({"divergence_limit": 1.0}, 1.01),
    "reference_free": ({}, None),
    "reference_point": ({}, "zero"),
    "reward_coef": ({}, 0.5),
    "reward_clip": ({}, 0.4),
    "reward_clip_low": ({}, 0.6),
    "reward_norm": ({}, True),
    "rollout_correction": ({}, {}),
    "rollout_correction.batch_normalise": (CORRECTED, True),
    "rollout_correction.lower": (CORRECTED, 0.9),
    "rollout_correction.measure": (CORRECTED, "mean"),
    "rollout_correction.mode": (CORRECTED, "bypass"),
    "rollout_correction.reject": (REJECTED, "seq_sum_k1"),
    "rollout_correction.reject_above": (REJECTED, 1.2),
    "rollout_correction.reject_below": (REJECTED, 0.9),
    "rollout_correction.upper": (CORRECTED, 1.05),
    "rollout_correction.weights": (CORRECTED, "sample"),
    "rpo_alpha": ({}, 0.5),
    "separator": ({}, ";"),
    "surrogate": ({}, {"name": "sapo", "tau_neg": 7.0}),
    "target_margin": ({}, 0.1),
    "tau_neg": ({}, 2.0),
    "tau_pos": ({}, 2.0),
    "teachers": ({}, [{"weights": "initial", "weight": 2.0}]),
    "threshold": ({}, 0.6),
    "tie_strength": ({"ties": "davidson"}, 0.5),
    "ties": ({}, "rao_kupper"),
    "top_k": ({"over": "top_k"}, 2),
    "turn_rewards": ({}, True),
    "undesirable_weight": ({}, 2.0),
    "value_clip": ({}, 0.05),
    "value_coef": ({}, 2.0),
    "weighting": ({}, "equal"),
    "weighting_clip": (FILTERED, 1.2),
    "whiten": ({}, False),
    "whiten_std": ({}, "none"),
}
# what an algorithm refuses in place of ignoring it
REFUSED = {
    **{
        ("gdpo", path): "compares each reward by itself"
        for path in (
            "overlong",
            "overlong.buffer",
            "overlong.factor",
            "reward_norm",
            "reward_clip",
            "reward_clip_low",
            "kl.route",
        )
    },
    ("simpo", "reference_free"): "leave both out",
    ("simpo", "average_log_prob"): "leave both out",
    ("mpo", "reference_free"): "judges by the log-ratio",
    ("ppo", "advantage"): "reads no value network",
    ("reinforce", "old_logprob"): "has no ratio",
    ("remax", "overlong"): "greedy response",
    ("remax", "overlong.buffer"): "greedy response",
    ("remax", "overlong.factor"): "greedy response",
}
ALGORITHMS = names("language algorithm")
REFUSED |= {(name, "rollout_correction.measure"): "denoising steps alone" for name in ALGORITHMS}


def nested(annotation: Any) -> Any:
    """The class of options in ``Class | None``, if it is one; a list of them is one option."""
    if get_origin(annotation) is list:
        return None
    found = [one for one in (annotation, *get_args(annotation)) if dataclasses.is_dataclass(one)]
    return found[0] if found else None


def options_of(kind: Any, prefix: str = "") -> list[str]:
    """Dotted names of all options of a class."""
    found = []
    for name, field in fields(kind).items():
        found.append(prefix + name)
        if (inner := nested(field.annotation)) is not None:
            found += options_of(inner, f"{prefix}{name}.")
    return found


def merged(tree: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    first, _, rest = path.partition(".")
    if not rest:
        return tree | {first: value}
    return tree | {first: merged(tree.get(first) or {}, rest, value)}


def base_of(kind: Any, path: str) -> dict[str, Any]:
    """Options with which an option is read."""
    base = {name: value for name, value in CHANGES[path][0].items() if name in fields(kind)}
    if "pass_k" in fields(kind) and path != "advantage":
        base = {"pass_k": 1, "pass_reward": 0.5} | base  # groups of three responses
    if "reward_coef" in fields(kind) and path != "reward_coef":
        base = {"reward_coef": 1.0} | base  # else what is about rewards is refused
    compares = "old_logprob" in fields(kind) and kind().part("surrogate").compares
    if compares and path.partition(".")[0] not in ("old_logprob", "rollout_correction"):
        base["old_logprob"] = "sampler"  # else nothing is far enough from the policy to be clipped
    return base


def changed(kind: Any, path: str) -> dict[str, Any]:
    value = CHANGES[path][1]
    if path == "kl.controller":
        return base_of(kind, path) | value
    if path == "advantage_aggregation" and value == fields(kind)[path].default:
        value = "sum"
    if path == "divergence":
        value = {"tv": "kl", "reverse": "forward"}[fields(kind)[path].default]
    if path == "kind":
        value = {"mse": "bce", "bce": "mse"}[fields(kind)[path].default]
    elif value is None:
        value = not fields(kind)[path].default
    return merged(base_of(kind, path), path, value)


def test_the_table_has_every_option_and_no_other():
    known = {path for name in ALGORITHMS for path in options_of(lookup("language algorithm", name))}
    assert known == set(CHANGES)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_option_changes_something(algorithm):
    kind = lookup("language algorithm", algorithm)
    bases: dict[str, list[Any]] = {}
    ignored = []
    for path in options_of(kind):
        if (algorithm, path) in REFUSED:
            with pytest.raises(ValueError, match=REFUSED[algorithm, path]):
                kind(**changed(kind, path))
            continue
        base = base_of(kind, path)
        before = bases.setdefault(repr(base), observed(kind(**base)))
        if repr(observed(kind(**changed(kind, path)))) == repr(before):
            ignored.append(path)
    assert not ignored
