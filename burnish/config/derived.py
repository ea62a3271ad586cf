"""What becomes of a configuration before it is checked: older options renamed, and defaults that depend on others."""

from __future__ import annotations

from typing import Any

from burnish.config.run import RunConfig
from burnish.config.text import fields
from burnish.registry import lookup, names


def renamed(tree: dict[str, Any]) -> dict[str, Any]:
    """A recipe or a config.yaml with today's options in place of older ones that mean the same.

    ``algorithm.solver`` of mix_grpo was that of its rollouts alone: euler, or dpm2, which is ``rollout.solver: dpm2m``.
    """
    algorithm = tree.get("algorithm")
    if not isinstance(algorithm, dict) or algorithm.get("name") != "mix_grpo" or "solver" not in algorithm:
        return tree
    kept = {name: value for name, value in algorithm.items() if name != "solver"}
    if algorithm["solver"] == "euler":
        return tree | {"algorithm": kept}
    if algorithm["solver"] != "dpm2" or any(not isinstance(tree.get(s, {}), dict) for s in ("rollout", "validation")):
        return tree
    rollout = {"solver": "dpm2m"} | tree.get("rollout", {})
    return tree | {
        "algorithm": kept,
        "rollout": rollout,
        "validation": {"solver": "euler"} | tree.get("validation", {}),
    }


def with_derived(tree: dict[str, Any], task: type[RunConfig]) -> dict[str, Any]:
    """A configuration's tree with the defaults that follow from what is in it; what is given, null too, stays.

    Samples of older weights are corrected for it: where ``pipeline.depth`` is above 0, every algorithm that has
    ``rollout_correction`` gets it. One that refers to the sampler's log-probs gets the form that does.
    """
    pipeline, algorithm = tree.get("pipeline"), tree.get("algorithm")
    depth = pipeline.get("depth") if isinstance(pipeline, dict) else None
    if not isinstance(algorithm, dict) or not isinstance(depth, int) or depth < 1:
        return tree
    name = algorithm.get("name")
    if name not in names(task.algorithm_kind) or "rollout_correction" in algorithm:
        return tree
    if "rollout_correction" not in fields(lookup(task.algorithm_kind, name)):
        return tree
    correction = {"mode": "bypass"} if algorithm.get("old_logprob") == "sampler" else {}
    return tree | {"algorithm": algorithm | {"rollout_correction": correction}}
