"""Metrics of an update, under the names of verl where it has some, and the clock that times its phases."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.rl.advantages import deviations, group_statistics
from burnish.types.completion import Lengths
from burnish.types.prompt import Prompt
from burnish.types.rollout import Collected, RemoteBatch, Rollouts, ScoredResponses, Scores
from burnish.types.samples import REPORTED, ResponseStats, execution_metrics

EMPTY: Mapping[str, Any] = MappingProxyType({})
MOST_SPANS = 2000  # that are remembered until they are read

Span = tuple[str, float, float]  # name, when it began in Unix seconds, and how many it took

_moves = 0


def moved() -> None:
    """Note that this process goes on: with a micro-batch, a step of sampling, a second of a wait with a deadline."""
    global _moves
    _moves += 1


def moves() -> int:
    """How often that was noted, by which ranks that hang are found."""
    return _moves


class Stopwatch:
    """Accumulates seconds by name until they are read."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._spans: deque[Span] = deque(maxlen=MOST_SPANS)
        self._lanes: dict[str, list[Span]] = defaultdict(list)  # of other processes
        self._parts = threading.local()  # seconds of parts of what is open, by thread
        self.mark: Callable[[str], AbstractContextManager[Any]] = nullcontext  # range of a profiler
        self.memory: Callable[[str], AbstractContextManager[Any]] = nullcontext  # measures what is held meanwhile

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start, began = time.perf_counter(), time.time()
        around, self._parts.seconds = getattr(self._parts, "seconds", 0.0), 0.0
        try:
            with self.mark(name), self.memory(name):
                yield
        finally:
            took = time.perf_counter() - start
            self._seconds[name] += took - self._parts.seconds
            self._parts.seconds = around
            self._spans.append((name, began, took))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a part of what is being measured, whose own seconds then are those of the rest."""
        start = time.perf_counter()
        try:
            with self(name):
                yield
        finally:
            self._parts.seconds += time.perf_counter() - start

    def add(self, seconds: Mapping[str, float], lanes: Mapping[str, Sequence[Span]] = EMPTY) -> None:
        """Add seconds that were measured elsewhere, and the spans of other processes by their names."""
        for name, value in seconds.items():
            self._seconds[name] += value
        for name, spans in lanes.items():
            self._lanes[name] = [*self._lanes[name], *spans][-MOST_SPANS:]

    def drain(self) -> dict[str, float]:
        """Seconds since the last call, by name."""
        seconds, self._seconds = self._seconds, defaultdict(float)
        return dict(seconds)

    def take_spans(self) -> list[Span]:
        """What this process measured since the last call, in order of its ends."""
        spans, self._spans = self._spans, deque(maxlen=MOST_SPANS)
        return list(spans)

    def take_lanes(self) -> dict[str, list[Span]]:
        """What other processes measured since the last call."""
        lanes, self._lanes = self._lanes, defaultdict(list)
        return dict(lanes)


PER_IMAGE = ("gen", "ref", "old_log_prob", "adv", "update_actor")  # phases that process every image
PER_TOKEN = ("gen", "ref", "old_log_prob", "values", "adv", "update_actor")
DRAWS = 1000  # of the bootstrap


def collected_metrics(collected: Collected) -> dict[str, float]:
    """Metrics of a batch before training on it; most offline batches have no rewards."""
    if isinstance(collected, RemoteBatch):
        return collected.metrics
    lengths = length_metrics(collected.lengths) if collected.lengths is not None else {}
    if not isinstance(collected, Rollouts):
        return lengths
    scores, group = collected.scores, collected.group
    metrics = reward_metrics(scores, group) | execution_metrics(collected.execution)
    if len(collected) and isinstance(collected, ScoredResponses):
        metrics |= of_responses(collected.stats, scores, group)
    return metrics | lengths | collected.metrics


def reward_metrics(scores: Scores, group: Tensor) -> dict[str, float]:
    """Reward statistics within prompts, each component's mean, and the number of missing rewards.

    Args:
        scores: [B]; missing rewards only count as missing.
        group: [B] samples of one prompt share an id.
    """
    reward, group, missing = scores.reward.cpu(), group.cpu(), scores.missing.cpu()
    statistics = group_statistics(reward, group, missing)
    scored = statistics.count > 0
    metrics = {
        "critic/missing_count": float(missing.sum()),
        "critic/missing_ratio": float(missing.double().mean()),
    }
    if scored.any():
        metrics |= {
            "critic/rewards/zero_std_ratio": float(statistics.constant[scored].double().mean()),
            "critic/rewards/std": float(reward[~missing].double().std(correction=0)),
            "critic/rewards/std_mean": float(statistics.std[scored].mean()),
            "critic/rewards/group_size": float(statistics.count[scored].mean()),
        }
    if (several := statistics.count > 1).any():
        # of the prompts with several samples: those where all have the highest reward, or all the same below it
        alike = statistics.constant[several]
        top = statistics.mean[several] >= float(reward.double()[~missing].max()) - 1e-12
        metrics["critic/rewards/solved_ratio"] = float((alike & top).double().mean())
        metrics["critic/rewards/dead_ratio"] = float((alike & ~top).double().mean())
    columns = [(name, value.cpu(), counts) for name, value, counts in score_columns(scores)]
    several_count = sum(counts for *_, counts in columns) > 1
    for name, value, counts in columns:
        known = value[~value.isnan()]
        if not len(known):
            continue
        metrics[f"critic/{name}/mean"] = float(known.mean())
        if counts and not several_count:  # it is the reward
            continue
        metrics[f"critic/{name}/std"] = float(known.std(correction=0))
        metrics |= standard_error(f"critic/{name}", value, group)
        if not counts:  # near 0 of what is irrelevant; below 0 something desirable is being traded for reward
            metrics |= reward_correlation(f"critic/{name}", value, reward, group, missing)
    return metrics | (shares(scores, group) if several_count else {})


def score_columns(scores: Scores) -> Iterator[tuple[str, Tensor, bool]]:
    """Every component and every further value of the samples: name, values [B] float64, whether it counts anywhere.

    NaN where a sample has none. Names of further values come in alphabetical order, whatever the batch was made of.
    """
    counts = (scores.applied != 0).any(0).tolist()
    yield from zip(scores.names, scores.components.double().unbind(1), counts, strict=True)
    for name in sorted({name for one in scores.further for name in one}):
        values = [one.get(name, math.nan) for one in scores.further]
        yield name, torch.tensor(values, dtype=torch.float64, device=scores.components.device), False


def reward_correlation(name: str, value: Tensor, reward: Tensor, group: Tensor, missing: Tensor) -> dict[str, float]:
    """``NAME/reward_correlation`` of values with the rewards of samples of one prompt: of deviations from the means.

    Args:
        name: of the values.
        value: [B]; NaN where there is none. Constant ones have no correlation.
        reward, group, missing: [B], see ``reward_metrics``.
    """
    absent = missing | value.isnan()
    paid, own = deviations(reward, group, absent), deviations(value, group, absent)
    size = float(paid.norm() * own.norm())
    return {f"{name}/reward_correlation": float(paid @ own) / size} if size > 0 else {}


def length_metrics(lengths: Lengths) -> dict[str, float]:
    """Lengths of responses and prompts in tokens, and the fraction of truncated responses."""
    if not len(lengths):
        return {}
    found = {
        "response_length/clip_ratio": float((~lengths.finished).double().mean()),
        "response/aborted_ratio": float((lengths.response == 0).double().mean()),
    }
    for name, values in (("response_length", lengths.response.double()), ("prompt_length", lengths.prompt.double())):
        found |= {
            f"{name}/mean": float(values.mean()),
            f"{name}/max": float(values.max()),
            f"{name}/min": float(values.min()),
        }
    return found


def validation_metrics(scores: Scores, prompts: Sequence[Prompt]) -> dict[str, float]:
    """verl's validation metrics by data source: reward and accuracy with their best and worst of k, components by mean.

    Where rewards read answers: what the majority's answer is worth, of the reward and of the component that reads it. N
    in a name is the number of samples per prompt, including those without a reward. mean@N, best@N and maj@N of the
    reward and of the accuracy are ``val-core``, the rest is ``val-aux``. The accuracy is what a reward calls ``acc``.

    Args:
        scores: [B].
        prompts: [B] one per sample; samples with equal prompts form a group.
    """
    sources: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row, prompt in enumerate(prompts):
        sources[prompt.source][prompt.uid].append(row)
    reward = scores.reward.double().cpu().masked_fill(scores.missing.cpu(), np.nan).numpy()
    columns = {name: value.cpu().numpy() for name, value, _ in score_columns(scores)}
    accuracies = [name for name in columns if name == "acc" or name.endswith("_acc")]
    judged = {"reward": reward} | {name if accuracies[1:] else "acc": columns.pop(name) for name in accuracies}
    metrics: dict[str, float] = {}
    for source, by_prompt in sources.items():
        rows = list(by_prompt.values())
        count = min(len(some) for some in rows)
        answers = {label for row in itertools.chain(*rows) for label in scores.answers[row]}
        first = [[next(iter(scores.answers[row].values()), None) for row in some] for some in rows]
        for variable, column in judged.items():
            values = [column[some] for some in rows]
            found = best_and_worst(values, count) | (majority(values, first, count) if answers else {})
            for name, value in found.items():
                core = name == f"mean@{count}" or name.startswith((f"best@{count}/", f"maj@{count}/"))
                metrics[f"val-{'core' if core else 'aux'}/{source}/{variable}/{name}"] = value
        for name, column in columns.items():
            known = [value[~np.isnan(value)] for value in (column[some] for some in rows)]
            means = [float(value.mean()) for value in known if len(value)]
            if means:
                metrics[f"val-aux/{source}/{name}/mean@{count}"] = float(np.mean(means))
            if name in answers:
                given = [[scores.answers[row].get(name) for row in some] for some in rows]
                voted = majority([column[some] for some in rows], given, count)
                metrics |= {f"val-aux/{source}/{name}/{k}": value for k, value in voted.items()}
    return metrics


def given_metrics(scores: Scores, prompts: Sequence[Prompt], condition: str) -> dict[str, float]:
    """Mean of every other component among samples whose component ``condition`` is 1, by data source.

    It tells a rise of accuracy from a rise of format alone.
    """
    if condition not in scores.names:
        return {}
    column = scores.names.index(condition)
    found: dict[str, float] = {}
    for source in dict.fromkeys(prompt.source for prompt in prompts):
        rows = torch.tensor([prompt.source == source for prompt in prompts]) & (scores.components[:, column] == 1)
        n = max(Counter(prompt.uid for prompt in prompts if prompt.source == source).values())
        for i, name in enumerate(scores.names):
            known = scores.components[rows, i].double()
            known = known[~known.isnan()]
            if i != column and len(known):
                found[f"val-aux/{source}/{name}_given_{condition}/mean@{n}"] = float(known.mean())
    return found


def best_and_worst(values: Sequence[np.ndarray], count: int) -> dict[str, float]:
    """Mean, best and worst of k samples: a bootstrap over a prompt's samples, averaged over prompts.

    Args:
        values: one array of rewards per prompt, NaN where missing; prompts without rewards are left out.
        count: samples per prompt; k takes the powers of two below it, and itself.
    """
    prompts = [known for known in (value[~np.isnan(value)] for value in values) if len(known)]
    if not prompts:
        return {}
    found: dict[str, list[float]] = defaultdict(list)
    for known in prompts:
        found[f"mean@{count}"].append(known.mean())
        if count < 2:
            continue
        found[f"std@{count}"].append(known.std())
        for size in _sizes(count):
            drawn = known[_draws(len(known), size)]
            for name, extreme in (("best", drawn.max(1)), ("worst", drawn.min(1))):
                found[f"{name}@{size}/mean"].append(extreme.mean())
                found[f"{name}@{size}/std"].append(extreme.std())
    return {name: float(np.mean(values_of)) for name, values_of in found.items()}


def majority(values: Sequence[np.ndarray], answers: Sequence[Sequence[str | None]], count: int) -> dict[str, float]:
    """What the answer that most of k samples give is worth: a bootstrap over a prompt's samples, averaged over prompts.

    As in verl, the answer drawn first wins a tie, it is worth what its first sample is, and having no answer is one.

    Args:
        values: one array per prompt, NaN where missing.
        answers: of the same samples, in a normal form; one that nobody reads (None) has no vote.
        count: samples per prompt; k takes the powers of two below it, and itself. With one there is no majority.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for value, given in zip(values, answers, strict=True):
        votes = [i for i, answer in enumerate(given) if answer is not None and not np.isnan(value[i])]
        numbers: dict[str | None, int] = {}
        party = np.array([numbers.setdefault(given[i], len(numbers)) for i in votes])
        for size in _sizes(count) if votes and count > 1 else ():
            drawn = _draws(len(votes), size)
            cells = party[drawn] + len(numbers) * np.arange(DRAWS)[:, None]
            strength = np.bincount(cells.ravel(), minlength=DRAWS * len(numbers))[cells]
            winner = drawn[np.arange(DRAWS), strength.argmax(1)]
            worth = value[votes][winner]
            found[f"maj@{size}/mean"].append(worth.mean())
            found[f"maj@{size}/std"].append(worth.std())
    return {name: float(np.mean(values_of)) for name, values_of in found.items()}


def _sizes(count: int) -> list[int]:
    return [*(2**power for power in range(1, count.bit_length()) if 2**power < count), count]


@cache
def _draws(population: int, size: int) -> np.ndarray:
    """Bootstrap indices [DRAWS, size]; as in verl, prompts with equally many samples share them."""
    return np.random.RandomState(42).choice(population, size=(DRAWS, size), replace=True)


def group_diversity(structures: Sequence[np.ndarray | None], group: Tensor) -> float:
    """Diversity of the samples of a prompt in their coarse structure, independent of noise and sharpness.

    It is the std of brightness, averaged over cells, among the samples of a prompt; the mean over cells and prompts. Of
    clips it is the mean over up to ``FRAMES`` evenly spaced frames, of sounds the std of loudness in short times.

    Args:
        structures: [B] as ``coarse`` gives them, of samples of one size and length within a prompt.
        group: [B] samples of one prompt share an id.

    Returns:
        From 0, if all samples of each prompt are alike, to 0.5; NaN if no prompt has two samples.
    """
    found = list(diversities(structures, group).values())
    return float(np.mean(found)) if found else float("nan")


def diversities(structures: Sequence[np.ndarray | None], group: Tensor) -> dict[int, float]:
    """The diversity of each prompt that has two samples, by its id."""
    members: dict[int, list[np.ndarray]] = defaultdict(list)
    for structure, number in zip(structures, group.tolist(), strict=True):
        if structure is not None:
            members[number].append(structure)
    return {number: float(np.stack(some).std(0).mean()) for number, some in members.items() if len(some) > 1}


def timing_metrics(
    seconds: dict[str, float], samples: int, lengths: Lengths | None = None, *, devices: int = 1
) -> dict[str, float]:
    """Seconds by phase, milliseconds per image or token for phases that process them, and throughput.

    Args:
        seconds: by phase; ``step`` is the full update, without which there is no throughput.
        samples: of the step.
        lengths: of responses; None for images.
        devices: that shared the work.
    """
    if lengths is None:
        unit, done = "image", samples
        counts, totals = dict.fromkeys(PER_IMAGE, done), {"perf/total_num_images": float(done)}
    else:
        generated = int(lengths.response.sum())
        unit, done = "token", generated + int(lengths.prompt.sum())
        counts = dict.fromkeys(PER_TOKEN, done) | {"gen": generated}
        totals = {"perf/total_num_responses": float(len(lengths)), "perf/total_num_tokens": float(done)}
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    for name, count in counts.items():
        if name in seconds and count:
            metrics[f"timing_per_{unit}_ms/{name}"] = seconds[name] * 1000 / count
    if step := seconds.get("step"):
        metrics |= totals | {"perf/time_per_step": step, "perf/throughput": done / devices / step}
    return metrics


CLOSE = 1e-5  # relative to the rewards: a sum that differs by less is their sum


def standard_error(name: str, value: Tensor, group: Tensor) -> dict[str, float]:
    """``NAME/error`` of a mean over prompts; NaN in [B] is missing."""
    absent = value.isnan()
    means = group_statistics(value.nan_to_num(0.0), group, absent)
    known = means.mean[means.count > 0]
    return {f"{name}/error": float(known.std() / math.sqrt(len(known)))} if len(known) > 1 else {}


def shares(scores: Scores, group: Tensor) -> dict[str, float]:
    """``critic/NAME/reward_share`` of each component that counts: the part of the differences among samples of a prompt
    that it makes. Their sum is 1; one whose differences others outweigh is below 0.

    Nothing where the reward is no weighted sum of components.
    """
    parts = (scores.applied * scores.counted).masked_fill(scores.applied == 0, 0.0).double().cpu()
    counts = (scores.applied != 0).any(0).cpu()
    absent = scores.missing.cpu() | parts[:, counts].isnan().any(1)
    reward = scores.reward.double().cpu()
    if absent.all() or not torch.allclose(parts[:, counts].sum(1)[~absent], reward[~absent], rtol=CLOSE, atol=CLOSE):
        return {}
    total = deviations(reward, group, absent)
    power = float(total @ total)
    if power == 0:
        return {}
    found = {}
    for name, part, counted in zip(scores.names, parts.unbind(1), counts.tolist(), strict=True):
        if counted:
            found[f"critic/{name}/reward_share"] = float(deviations(part, group, absent) @ total) / power
    return found


def of_responses(stats: Sequence[ResponseStats], scores: Scores, group: Tensor) -> dict[str, float]:
    """``response/NAME/...`` of statistics of responses: mean, std, error, correlation with the reward of a prompt."""
    metrics: dict[str, float] = {}
    reward, group, missing = scores.reward.double().cpu(), group.cpu(), scores.missing.cpu()
    for name in REPORTED:
        value = torch.tensor([float(getattr(one, name)) for one in stats], dtype=torch.float64)
        known = value[~value.isnan()]
        if not len(known):
            continue
        metrics[f"response/{name}/mean"] = float(known.mean())
        metrics[f"response/{name}/std"] = float(known.std(correction=0))
        metrics |= standard_error(f"response/{name}", value, group)
        metrics |= reward_correlation(f"response/{name}", value, reward, group, missing)
    length = torch.tensor([float(one.length) for one in stats], dtype=torch.float64)
    paid = deviations(reward, group, missing)
    for side, rows in (("better", paid > 0), ("worse", paid < 0)):
        if rows.any():
            metrics[f"response/length/{side}"] = float(length[rows].mean())
    return metrics
