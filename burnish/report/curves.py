"""Every curve of a run as plain data, in the sections in which a page shows them, and where the time went."""

from __future__ import annotations

import io
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from burnish.config.run_folder import STEP, RunFolder
from burnish.report.samples import MOST_POINTS, MOST_SCORED, Interval, Points, chosen, fewer, read_scores, series, short
from burnish.report.statistics import REWARD, Measure, by_source, over_sources, value_of
from burnish.report.summary import Summary
from burnish.utils.images import BLUE, VERMILION
from burnish.utils.records import RECORD, cached, is_number, read_records, stamp

VALIDATION, WATCHED, MEMORY, REST = "Validation", "Watched statistics", "Memory", "Other metrics"
TRAINED = {
    "actor/": "The policy",
    "critic/": "Rewards and advantages",
    "fake/": "The fake score",
    "surrogate/": "The surrogate reward",
    "response_length/": "Responses",
    "response/": "What responses are like",
    "old_policy/": "The sampling policy",
    "rollout_corr/": "Sampler vs trainer",
}
SECTIONS = TRAINED | {
    "timing_s/": "Seconds by phase",
    "perf/": "Speed",
    "pipeline/": "Pipeline",
    "reward/": "Scoring",
    "train/": "Sampling",
    "timing_per_": "Time per sample",
}
ORDER = [VALIDATION, WATCHED, *TRAINED.values(), MEMORY, *list(SECTIONS.values())[len(TRAINED) :], REST]
DRAWN = 4  # charts of an image: the reward and the first measures beside it
GREY = "#9a9a9a"
EXPLAINED = {  # the first pattern that matches
    "actor/loss": "the loss; it need not fall in policy optimisation",
    "actor/total_loss": "sum of all losses",
    "actor/pg_loss": "policy gradient loss",
    "actor/*_loss": "a part of the loss",
    "actor/kl_loss": "KL to the reference, before its coefficient",
    "actor/grad_norm": "gradient norm before clipping: jumps are a warning",
    "actor/lr": "learning rate",
    "actor/skipped_updates": "skipped steps: non-finite, or without training signal",
    "actor/ratio_*": "probability ratio to the sampling policy; 1 before any step",
    "actor/ppo_kl*": "KL between the sampling and the current policy",
    "actor/pg_clipfrac*": "clip fraction: high values mean that steps are too large",
    "actor/velocity_norm_ratio": "norm of predictions relative to the reference's: a rise precedes collapse",
    "actor/velocity_distance": "distance of predictions from the reference's",
    "actor/old_deviate": "distance to the old policy",
    "actor/positive_loss": "loss of the positive branch",
    "actor/negative_loss": "loss of the negative branch",
    "actor/reward_prob_mean": "mean optimality probability of the rewards",
    "actor/real_pull": "pull of the policy to the untrained model, against the fake score: growth means that it lags",
    "actor/reward_pull": "pull of the policy by the surrogate reward",
    "fake/loss": "flow matching of what the policy draws",
    "surrogate/*frac": "fraction of samples that teach the surrogate no more",
    "actor/entropy": "policy entropy: near 0 there is no exploration",
    "actor/kl_coef": "coefficient of the KL in the reward",
    "critic/rewards/zero_std_ratio": "fraction of prompts whose samples all have the same reward: no training signal",
    "critic/rewards/std": "std of rewards over the samples",
    "critic/rewards/std_mean": "std of rewards within a prompt: 0 means no training signal",
    "critic/rewards/group_size": "samples per prompt that have a reward",
    "critic/rewards/max": "highest reward of the training samples",
    "critic/rewards/min": "lowest reward of the training samples",
    "critic/rewards/clip_ratio": "fraction of rewards that were clipped",
    "critic/missing_count": "samples without a reward, which are not trained on",
    "critic/missing_ratio": "fraction of samples without a reward, which are not trained on",
    "critic/diversity": "diversity of the images of a prompt",
    "critic/advantages/*": "advantages",
    "critic/returns/*": "returns",
    "critic/score/*": "rewards before KL and shaping",
    "critic/*/reward_correlation": "correlation of a logged-only component with the reward: should be 0 if irrelevant",
    "critic/vf_*": "the value network",
    "critic/vpred_mean": "mean prediction of the value network",
    "critic/*/error": "standard error of the mean over prompts",
    "critic/*/reward_share": "the part of the reward's differences within prompts that this component makes",
    "critic/rewards/solved_ratio": "fraction of prompts all of whose samples have the highest reward",
    "critic/rewards/dead_ratio": "fraction of prompts all of whose samples have the same reward, not the highest",
    "response/length/better": "tokens of responses whose reward is above the mean of their prompt",
    "response/length/worse": "tokens of responses whose reward is below the mean of their prompt",
    "response/length/mean": "tokens of a response",
    "response/truncated/mean": "fraction of truncated responses",
    "response/repeated/mean": "fraction of runs of four tokens that occurred before",
    "response/surprisal/mean": "mean -log-prob of the first tokens: their entropy",
    "response/reflections/mean": "words by which a response reconsiders: wait, actually",
    "response/*/reward_correlation": "correlation with the reward among samples of a prompt",
    "alarms/standing": "alarms that are not over",
    "critic/*/mean": "mean of this reward component",
    "response_length/clip_ratio": "fraction of truncated responses",
    "response_length/*": "tokens of a response",
    "old_policy/decay": "EMA decay of the sampling policy",
    "old_policy/*": "update of the sampling policy",
    "rollout_corr/rollout_is_eff_sample_size": "effective sample size as a fraction: near 1 is good",
    "rollout_corr/logprob_abs_diff*": "difference between the log-probs of sampler and trainer",
    "rollout_corr/kl": "KL between sampler and trainer",
    "rollout_corr/*": "importance correction between sampler and trainer",
    "rollout/computed_steps_ratio": "fraction of the denoising steps at which the networks ran",
    "rollout/forecast_error": "relative error of the steps that are forecast",
    "rollout/fp8_error": "relative error of predictions in fp8",
    "perf/total_time": "seconds of all updates, and of validations between them",
    "perf/time_per_step": "seconds of an update",
    "perf/throughput": "images or tokens per second and device",
    "perf/mfu/*": "model FLOPs utilisation, as a fraction of the GPU's peak",
    "pipeline/staleness/*": "updates between the weights that sampled and those that are trained",
    "pipeline/idle_share/*": "fraction of the time in which it waited",
    "pipeline/partial/*": "shares of responses that are put aside, and of tokens that were",
}


@dataclass(config=RECORD)
class Timeline:
    """A line of timeline.jsonl: by process, what began when in seconds, and how long it took."""

    update: int
    lanes: dict[str, list[tuple[str, float, float]]]


_TIMELINE = TypeAdapter(Timeline)


def charts(folder: RunFolder, run: Summary, *, most: int = MOST_POINTS) -> dict[str, Any]:
    """Charts in order, and along what they can be drawn; ``most`` points of a line."""
    listed = list(_validation(folder, run, most))
    rewards = points_of(run, "critic/rewards/mean")
    shown = {"critic/rewards/mean", *map(trained_key, run.measures)}
    constant: dict[str, float] = {}
    alike: dict[tuple[tuple[int, float | None], ...], dict[str, Any]] = {}
    for name in sorted({name for row in run.rows for name in row if not name.startswith(("val-", "training/"))}):
        points = points_of(run, name)
        if name in shown or not points or (points == rewards and name.startswith("critic/")):
            continue
        if len({value for _, value in points}) == 1 and len(points) > 1:
            constant[name] = points[0][1] or 0.0
        elif (key := tuple(points)) in alike:  # a metric under several names is one chart
            alike[key]["also"].append(name)
        else:
            part = next((title for start, title in SECTIONS.items() if name.startswith(start)), REST)
            alike[key] = {
                "title": name, "part": MEMORY if "memory" in name or "_gb" in name else part, "also": [],
                "note": next((text for pattern, text in EXPLAINED.items() if fnmatchcase(name, pattern)), ""),
                "series": [series("training", "training", points, most=most)],
            }  # fmt: skip
    listed += alike.values()
    listed.sort(key=lambda chart: ORDER.index(chart["part"]))
    used = zip(("update", "samples", "seconds"), zip(*chosen(run.used, most), strict=True), strict=False)
    return {"last": run.updates, "charts": listed, "constant": constant, "axes": dict(used)}


def trained_key(measure: Measure) -> str:
    """The metric of training that a measure of validations belongs to; "" if there is none."""
    parts = measure.key.split("/")
    return f"critic/{parts[2]}/mean" if len(parts) == 4 else ""


def points_of(run: Summary, key: str) -> Points:
    """Points (update, value) of a metric."""
    return [(row[STEP], value) for row in run.rows if (value := value_of(row, key)) is not None]


def _validation(folder: RunFolder, run: Summary, most: int) -> Iterator[dict[str, Any]]:
    updates = chosen(folder.validations(), MOST_SCORED)
    for measure in run.measures or [REWARD]:
        reward = measure.key == REWARD.key
        sources = {update: by_source(read_scores(folder.validation(update)), measure.column) for update in updates}
        points = points_of(run, measure.key)
        lines = [series("validation", "validation", points, _intervals(points, sources), most=most)] if points else []
        trained = points_of(run, "critic/rewards/mean" if reward else trained_key(measure))
        lines = [series("training", "training", trained, most=most)] * bool(trained) + lines
        if not lines:
            continue
        chart: dict[str, Any] = {
            "title": "Reward" if reward else measure.title, "note": measure.about, "also": [],
            "part": WATCHED if measure.watched else VALIDATION, "series": lines,
            "percent": measure.percent, "zero": measure.relative, "key": measure.key,
            "span": 0.0 if measure.relative else 4 * measure.enough,
        }  # fmt: skip
        if run.reference is not None and (reached := measure.of(run.reference)) is not None:
            chart["reference"] = {"name": f"untrained, guidance {run.reference['guidance_scale']:g}", "y": reached}
        names = list(dict.fromkeys(name for means in sources.values() for name in means))
        if len(names) > 1:
            own = {name: {at: means[name] for at, means in sources.items() if name in means} for name in names}
            chart["sources"] = [
                series(name, "source", [(at, value) for at, (value, _) in by_update.items()],
                       [interval for _, interval in by_update.values()], most=most)
                for name, by_update in own.items()
            ]  # fmt: skip
        yield chart


def _intervals(points: Points, sources: dict[int, dict[str, tuple[float, Interval]]]) -> list[Interval]:
    """Around the metric as it was logged, as wide as the scores say."""
    known = [(value, over_sources(sources.get(update, {}))) for update, value in points]
    return [
        None if value is None or means is None or means[1] is None
        else (value - means[1][1] + means[0], value + means[1][1] - means[0])
        for value, means in known
    ]  # fmt: skip


def time_data(folder: RunFolder, run: Summary, update: int | None = None) -> dict[str, Any]:
    """Seconds by phase over the updates, and who did what when during one of them, the last one if None."""
    rows = [row for row in run.rows if is_number(row.get("timing_s/step"))]
    steps: Points = [(row[STEP], row["timing_s/step"]) for row in rows]
    places = fewer(steps)
    names = sorted({key.removeprefix("timing_s/") for row in rows for key in row if key.startswith("timing_s/")})
    seconds = {name: [row.get(f"timing_s/{name}") or 0.0 for row in rows] for name in names}
    phases = {  # parts of one are not counted twice
        name: [short(seconds[name][place]) for place in places] for name in names if name != "step" and "/" not in name
    }
    spans = _read_timeline(folder.timeline)
    updates = sorted(spans)
    wanted = updates[-1] if update is None and updates else update
    return {
        "x": [steps[place][0] for place in places], "step": [short(steps[place][1]) for place in places],
        "phases": phases, "means": {name: short(sum(values) / len(values)) for name, values in seconds.items()},
        "updates": updates, "update": wanted,
        "spans": [{"lane": lane, "spans": own} for lane, own in spans.get(wanted or 0, {}).items()],
    }  # fmt: skip


@cached(stamp)
def _read_timeline(file: Path) -> dict[int, dict[str, list[tuple[str, float, float]]]]:
    return {line.update: line.lanes for line in read_records(file, _TIMELINE, file.parent)}


def curves_image(folder: RunFolder, run: Summary) -> bytes | None:
    """A PNG file of the reward and other measures over the updates; None before there are two points."""
    drawn = [chart for chart in charts(folder, run)["charts"] if chart["part"] == VALIDATION][:DRAWN]
    drawn = [chart for chart in drawn if any(len(line["x"]) > 1 for line in chart["series"])]
    if not drawn:
        return None
    from matplotlib.figure import Figure

    columns = min(2, len(drawn))
    rows = -(-len(drawn) // columns)
    figure = Figure(figsize=(4.6 * columns, 2.9 * rows), dpi=130, layout="constrained")
    for number, chart in enumerate(drawn):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, chart, 100 if chart.get("percent") else 1)
        axes.set_xlabel("policy updates", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(color="#e4e4e4", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=7, frameon=False)
    file = io.BytesIO()
    figure.savefig(file, format="png", metadata={"Software": None})
    return file.getvalue()


def _draw(axes: Any, chart: dict[str, Any], factor: int) -> None:
    """One chart: training is grey, validation blue with its band, the untrained model with guidance a dashed line."""
    for line in chart["series"]:
        of = {name: factor * np.array(line[name], float) for name in ("y", "low", "high") if name in line}
        look: dict[str, Any] = {"color": GREY, "linewidth": 1}
        if line["style"] == "validation":
            look = {"color": tuple(value / 255 for value in BLUE), "linewidth": 1.8, "marker": "o", "markersize": 3.5}
        axes.plot(line["x"], of["y"], label=line["name"], **look)
        if "low" in of:
            axes.fill_between(line["x"], of["low"], of["high"], color=look["color"], alpha=0.18, linewidth=0)
    if (reference := chart.get("reference")) is not None:
        look = {"color": tuple(value / 255 for value in VERMILION), "linewidth": 1, "linestyle": "--"}
        axes.axhline(reference["y"] * factor, label=reference["name"], **look)
    axes.set_title(chart["title"] + (" (%)" if factor == 100 else ""), fontsize=10, parse_math=False)
