"""Defaults of one section that depend on another."""

from __future__ import annotations

from typing import Any

from burnish.config.run import RunConfig
from burnish.config.text import fields
from burnish.registry import lookup, names


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
