"""Networks of rewards that share a GPU with the process whose samples they score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from burnish.config import RunConfig
from burnish.config.yaml_text import parse
from burnish.forecast.counter import REWARDS, Peak
from burnish.forecast.phases import SAMPLE, VALIDATE
from burnish.forecast.published import CONFIG, FOLDER, published_model
from burnish.utils.paths import resolve

CONTEXT = 1 << 29  # bytes that CUDA takes in the process of the scorers: half a GiB
WIDTHS = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Scorers:
    """What they take of the GPU."""

    always: int = 0  # bytes of weights that rest there, and of their process
    scoring: int = 0  # bytes of those that are there while samples are scored
    unknown: tuple[str, ...] = ()  # labels of rewards whose weights nobody knows here

    def beside(self, phases: dict[str, Peak]) -> dict[str, Peak]:
        """The peaks of a process with what its scorers take beside it; they score what is sampled meanwhile."""
        found = {}
        for name, peak in phases.items():
            more = self.always + (self.scoring if name in (SAMPLE, VALIDATE) else 0)
            parts = peak.parts | ({REWARDS: more} if more else {})
            found[name] = replace(peak, total=peak.total + more, parts=parts)
        return found


def scorers_of(config: RunConfig) -> Scorers:
    """The scorers of one process that samples; none where a pool of their own has them.

    Rewards that a run leaves out where their weights are not in the hub's cache count as if they were.
    """
    if config.runtime == "ray" and config.pools.reward is not None:
        return Scorers()
    always, scoring, unknown = 0, 0, []
    counting = {(one.name, vars(one).get("path")) for one in config.rewards.values() if not vars(one).get("if_cached")}
    seen = set()
    for label, reward in config.rewards.items():
        if not reward.has_weights or reward.device_name != "cuda":
            continue
        options: dict[str, Any] = vars(reward)
        network = options.get("path"), options.get("version"), options.get("dtype")
        watched_too = bool(options.get("if_cached")) and (reward.name, options.get("path")) in counting
        if network in seen or watched_too:
            continue  # which is loaded once, or left out
        seen.add(network)
        count = _weights(str(options.get("path")))
        if count is None:
            unknown.append(label)
            continue
        size = int(count * WIDTHS[options.get("dtype", "bfloat16")])
        always, scoring = (always, scoring + size) if reward.puts_away else (always + size, scoring)
    if (seen or unknown) and config.scoring.processes:
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
            for name in opened.keys():  # noqa: SIM118 - it is no dict
                size = 1
                for side in opened.get_slice(name).get_shape():
                    size *= side
                yield size
