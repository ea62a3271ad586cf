"""Numbers about rewards, pictures and time, under the names that verl gives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from burnish.types import Prompt, Scores

PER_IMAGE = (
    "gen",
    "ref",
    "old_log_prob",
    "adv",
    "update_actor",
)  # parts of a step that grow with its pictures
RESAMPLINGS = 1000  # bootstrap draws behind best@k and worst@k
MIN_CELL, MAX_CELLS = 4, 16  # pixels, and cells per side: variety of layout and shape, not of single pixels


def reward_metrics(scores: Scores, group: Tensor) -> dict[str, float]:
    """What one update's rewards look like; samples without a reward are left out.

    Args:
        scores: of B samples.
        group: [B] samples of one prompt share a number.
    """
    metrics = {"critic/missing_ratio": float(scores.missing.float().mean())}
    for column, name in enumerate(scores.names):
        values = scores.components[:, column]
        known = values[~values.isnan()]
        if len(known):
            metrics[f"critic/{name}/mean"] = float(known.mean())
    reward, group = scores.reward[~scores.missing].double(), group[~scores.missing]
    if not len(reward):
        return metrics
    groups = [reward[group == number] for number in group.unique()]
    # equality, not std == 0: in floating point the std of equal values need not be 0
    equal = [float(values.max() == values.min()) for values in groups]
    metrics["critic/rewards/zero_std_ratio"] = sum(equal) / len(groups)
    metrics["critic/rewards/std_mean"] = sum(float(v.std(correction=0)) for v in groups) / len(groups)
    metrics["critic/rewards/group_size"] = len(reward) / len(groups)
    return metrics


def timing_metrics(seconds: dict[str, float], images: int) -> dict[str, float]:
    """Time of a step by its parts, and pictures per second."""
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    if images:
        for name in PER_IMAGE:
            if name in seconds:
                metrics[f"timing_per_image_ms/{name}"] = 1000 * seconds[name] / images
    metrics["perf/total_num_images"] = float(images)
    if "step" in seconds:
        metrics["perf/time_per_step"] = seconds["step"]
        metrics["perf/throughput"] = images / seconds["step"]
    return metrics


def is_time_column(name: str) -> bool:
    """Whether a metric measures time, and so differs between runs that are otherwise equal."""
    return name.startswith(("timing_s/", "timing_per_image_ms/", "perf/"))


def validation_metrics(scores: Scores, prompts: Sequence[Prompt]) -> dict[str, float]:
    """Rewards of held-out prompts by data source, averaged over the samples of a prompt, then over prompts.

    N of ``mean@N`` counts all samples of a prompt, also those whose reward is missing and left out.

    Args:
        scores: of B samples.
        prompts: of B samples; the same prompt once per sample.
    """
    samples: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for i, prompt in enumerate(prompts):
        samples[prompt.source][prompt.uid].append(i)
    reward = torch.where(scores.missing, torch.nan, scores.reward).double().numpy()
    components = scores.components.double().numpy()
    metrics: dict[str, float] = {}
    for source, by_prompt in samples.items():
        n = max(len(rows) for rows in by_prompt.values())
        spread = [_spread(reward[rows], n) for rows in by_prompt.values()]
        metrics |= _means(spread, f"val-core/{source}/reward")
        for column, name in enumerate(scores.names):
            means = [_spread(components[rows, column], n, only_mean=True) for rows in by_prompt.values()]
            metrics |= _means(means, f"val-aux/{source}/{name}")
    return metrics


def group_diversity(pictures: Sequence[np.ndarray], group: Tensor) -> float:
    """How much the samples of one prompt differ in their low frequencies; 0 if they are all the same picture.

    Grayscale in [0, 1], pooled into cells; the population's std over the samples of a prompt per cell; the
    mean over cells, then over prompts. NaN where no prompt has two samples.
    """
    by_group: defaultdict[int, list[np.ndarray]] = defaultdict(list)
    for number, picture in zip(group.tolist(), pictures, strict=True):
        by_group[number].append(_pool(picture))
    spreads = [float(np.std(cells, axis=0).mean()) for cells in by_group.values() if len(cells) > 1]
    return sum(spreads) / len(spreads) if spreads else float("nan")


def _spread(values: np.ndarray, n: int, *, only_mean: bool = False) -> dict[str, float]:
    """What is said about the samples of one prompt."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {}
    metrics = {f"mean@{n}": float(values.mean())}
    if n == 1 or only_mean:
        return metrics
    metrics[f"std@{n}"] = float(values.std())
    for k in [*(2**i for i in range(1, n.bit_length()) if 2**i < n), n]:
        # the same draws each time: what differs between two validations is the policy
        draws = values[np.random.RandomState(42).randint(0, len(values), size=(RESAMPLINGS, k))]
        metrics[f"best@{k}/mean"] = float(draws.max(axis=1).mean())
        metrics[f"worst@{k}/mean"] = float(draws.min(axis=1).mean())
    return metrics


def _means(of_prompts: list[dict[str, float]], prefix: str) -> dict[str, float]:
    names = dict.fromkeys(name for metrics in of_prompts for name in metrics)
    values = {name: [metrics[name] for metrics in of_prompts if name in metrics] for name in names}
    return {f"{prefix}/{name}": sum(found) / len(found) for name, found in values.items()}


def _pool(picture: np.ndarray) -> np.ndarray:
    gray = picture.astype(np.float64) / 255
    if gray.ndim == 3:
        gray = gray.mean(axis=2)
    for axis in (0, 1):
        size = gray.shape[axis]
        starts = np.arange(0, size, max(MIN_CELL, -(-size // MAX_CELLS)))
        counts = np.diff([*starts, size])
        gray = np.add.reduceat(gray, starts, axis=axis) / (counts[:, None] if axis == 0 else counts)
    return gray
