"""Charts of the training metrics, each with an explanation."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from html import escape

from burnish.config.run_folder import STEP
from burnish.report.curves import Chart, Series
from burnish.report.measures import mean
from burnish.report.summary import Summary

PARTS = {
    "actor/": "The policy",
    "critic/": "Rewards and advantages",
    "fake/": "The fake score",
    "surrogate/": "The surrogate reward",
    "response_length/": "Responses",
    "response/": "What responses are like",
    "old_policy/": "The sampling policy",
    "rollout_corr/": "Sampler vs trainer",
}
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
    "fake/*": "",
    "surrogate/*": "",
    "actor/entropy": "policy entropy: near 0 there is no exploration",
    "actor/kl_coef": "coefficient of the KL in the reward",
    "actor/*": "",
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
    "alarms/standing": "alarms that stand",
    "critic/*/mean": "mean of this reward component",
    "response_length/clip_ratio": "fraction of truncated responses",
    "response_length/*": "tokens of a response",
    "old_policy/decay": "EMA decay of the sampling policy",
    "old_policy/*": "update of the sampling policy",
    "rollout_corr/rollout_is_eff_sample_size": "effective sample size as a fraction: near 1 is good",
    "rollout_corr/logprob_abs_diff*": "difference between the log-probs of sampler and trainer",
    "rollout_corr/kl": "KL between sampler and trainer",
    "rollout_corr/*": "importance correction between sampler and trainer",
}


def health(run: Summary, shown: Collection[str]) -> str:
    """HTML; "" if no metric changed.

    Args:
        run: of the report.
        shown: metrics that are shown elsewhere on the page.
    """
    names = sorted({name for row in run.rows for name in row if name.startswith(tuple(PARTS))})
    rewards = points_of(run, "critic/rewards/mean")
    curves: dict[tuple[tuple[int, float | None], ...], list[str]] = {}
    constant = []
    for name in names:
        points = points_of(run, name)
        if name in shown or name == "critic/rewards/mean" or points == rewards:
            continue  # a single component equals the reward
        values = {value for _, value in points}
        if len(values) > 1:
            curves.setdefault(tuple(points), []).append(name)
        elif values:
            constant.append(f"{name} = {values.pop():g}")
    parts = [_part(prefix, title, curves, run.updates) for prefix, title in PARTS.items()]
    if not any(parts):
        return ""
    rest = f"<p>The same at every update: {escape(', '.join(constant))}.</p>" if constant else ""
    return "".join(parts) + rest


def _part(prefix: str, title: str, curves: dict[tuple[tuple[int, float | None], ...], list[str]], last: int) -> str:
    charts = []
    for points, (name, *others) in curves.items():
        if name.startswith(prefix):
            note = explained(name) + (f"; the same as {', '.join(others)}" if others else "")
            series = [Series("training", "training", points)]
            charts.append(Chart(name, series, last, note=note.removeprefix("; ")).html())
    return f'<h3>{title}</h3><div class="charts small">{"".join(charts)}</div>' if charts else ""


def explained(name: str) -> str:
    """Explanation of a metric, or ""."""
    return next((words for pattern, words in EXPLAINED.items() if fnmatchcase(name, pattern)), "")


def points_of(run: Summary, key: str) -> list[tuple[int, float | None]]:
    """Points (update, value) of a metric."""
    found = ((row[STEP], mean(row, key)) for row in run.rows)
    return [(update, value) for update, value in found if value is not None]
