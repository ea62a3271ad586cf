"""Networks of rewards that share a GPU with the process whose samples they score."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from burnish.config import RunConfig
from burnish.config.yaml_text import parse
from burnish.evaluation.suite import suites_of
from burnish.plan.counter import REWARDS, Peak
from burnish.plan.measure import BASELINE, SAMPLE, VALIDATE
from burnish.plan.published import CONFIG, FOLDER, published_model
from burnish.rewards.base import AnyReward
from burnish.utils.paths import resolve

CONTEXT = 1 << 29  # bytes that CUDA takes in the process of the scorers: half a GiB
WIDTHS = {"float32": 4, "bfloat16": 2}
FURTHER = ("clip",)  # options of rewards that name a network beside that of path


@dataclass(frozen=True)
class Scorers:
    """What they take of the GPU."""

    always: int = 0  # bytes of weights that rest there, and of their process
    scoring: int = 0  # bytes of those that are there while samples are scored
    unknown: tuple[str, ...] = ()  # options of rewards whose weights nobody knows here

    def __add__(self, other: Scorers) -> Scorers:
        """Both: each has processes and networks of its own."""
        return Scorers(self.always + other.always, self.scoring + other.scoring, (*self.unknown, *other.unknown))

    def beside(self, phases: dict[str, Peak]) -> dict[str, Peak]:
        """The peaks of a process with what its scorers take beside it; they score what is sampled meanwhile."""
        found = {}
        for name, peak in phases.items():
            more = self.always + (self.scoring if name in (SAMPLE, VALIDATE, BASELINE) else 0)
            parts = peak.parts | ({REWARDS: more} if more else {})
            found[name] = replace(peak, total=peak.total + more, parts=parts)
        return found


def scorers_of(config: RunConfig, *, samples: bool, trains: bool) -> Scorers:
    """The scorers of one process, but those in a pool of their own.

    Args:
        config: of the run.
        samples: whether it samples what is learned from.
        trains: whether it trains, and so evaluates: then it scores held-out samples, and those of suites.
    """
    found = Scorers()
    pooled = config.runtime == "ray" and config.pools.reward is not None
    if not pooled and config.scored and (samples or (trains and (config.validates or config.scoring.probe))):
        found += loaded_by(config.rewards, config.scoring.processes, "rewards")
    for suite in suites_of(config) if trains and config.validates else ():
        found += loaded_by(suite.scorers, config.scoring.processes, f"suite {suite.name}: scorers")
    return found


def loaded_by(rewards: Mapping[str, AnyReward], processes: int, section: str) -> Scorers:
    """What the networks of rewards take of the GPU of whoever scores by them.

    Rewards that a run leaves out where their weights are not in the hub's cache count as if they were.

    Args:
        rewards: by label.
        processes: of the scorers; with none of their own they are in the run's.
        section: that they are options of, for messages.
    """
    always, scoring, unknown = 0, 0, []
    counting = {(one.name, vars(one).get("path")) for one in rewards.values() if not vars(one).get("if_cached")}
    seen = set()
    for label, reward in rewards.items():
        if not reward.has_weights or reward.device_name != "cuda":
            continue
        options: dict[str, Any] = vars(reward)
        network = options.get("path"), options.get("version"), options.get("dtype")
        watched_too = bool(options.get("if_cached")) and (reward.name, options.get("path")) in counting
        if network in seen or watched_too:
            continue  # which is loaded once, or left out
        seen.add(network)
        # those that others trained further are as large as what they began from
        count = _weights(str(options.get("path"))) or _weights(str(options.get("base")))
        further = [_weights(str(options[name])) for name in FURTHER if options.get(name) is not None]
        if count is None or None in further:
            unknown.append(f"{section}.{label}")
            continue
        size = int((count + sum(map(float, filter(None, further)))) * WIDTHS[options.get("dtype", "bfloat16")])
        # one process scores on a device, by one reward after the other
        always, scoring = (always, max(scoring, size)) if reward.puts_away else (always + size, scoring)
    if (seen or unknown) and processes:
        always += CONTEXT
    return Scorers(always, scoring, tuple(unknown))


def _weights(path: str) -> float | None:
    """Weights of a network by its name on the hub, or of one in a directory."""
    if path in _counts():
        return _counts()[path]
    model = published_model(path, CONFIG)
    if model is not None:
        return model.weights[""]
    folder = resolve(path)
    return sum(_numbers(folder)) or None if folder.is_dir() else None


@cache
def _counts() -> dict[str, float]:
    counts: dict[str, float] = parse((FOLDER / "scorers.yaml").read_text(encoding="utf-8"))["models"]
    return counts


def _numbers(folder: Any) -> Iterator[int]:
    """Elements of the tensors in a folder's safetensors."""
    from safetensors import safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as opened:
            yield from (math.prod(opened.get_slice(name).get_shape()) for name in opened.keys())  # noqa: SIM118
