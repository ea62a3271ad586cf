"""Charts of what training is watched by, each with a line that says what it shows."""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from html import escape

from burnish.config.run_folder import STEP
from burnish.report.curves import Chart, Series
from burnish.report.summary import Summary, mean

PARTS = {
    "actor/": "The policy",
    "critic/": "Rewards, and what was made of them",
    "response_length/": "Responses",
    "old_policy/": "The policy that sampled",
    "rollout_corr/": "Sampler against trainer",
}
EXPLAINED = {  # the first that fits
    "actor/loss": "what was minimised; with rewards it need not fall",
    "actor/total_loss": "what was minimised, all parts together",
    "actor/pg_loss": "the policy gradient's part of the loss",
    "actor/*_loss": "a part of the loss",
    "actor/kl_loss": "distance to the reference, before its coefficient",
    "actor/grad_norm": "length of the gradient before clipping: jumps are a warning",
    "actor/lr": "learning rate",
    "actor/skipped_updates": "steps left out: not finite, or nothing to learn from",
    "actor/ratio_*": "probability ratio to the policy that sampled; 1 where nothing has moved yet",
    "actor/ppo_kl*": "how far the policy has moved from the one that sampled",
    "actor/pg_clipfrac*": "share of terms that the clip silences: much of it means steps that are too large",
    "actor/velocity_norm_ratio": "size of predictions against the reference's: growth comes before collapse",
    "actor/velocity_distance": "how far predictions have gone from the reference's",
    "actor/old_deviate": "distance to the old policy",
    "actor/positive_loss": "the branch that is learned from good samples",
    "actor/negative_loss": "the branch that is learned from bad samples",
    "actor/reward_prob_mean": "mean optimality that rewards were turned into",
    "actor/entropy": "how undecided the policy is: near 0 it explores no more",
    "actor/kl_coef": "coefficient of the KL in the reward",
    "actor/*": "",
    "critic/rewards/zero_std_ratio": "share of prompts whose samples all got the same reward: they teach nothing",
    "critic/rewards/std_mean": "spread of rewards within a prompt: without any there is nothing to learn",
    "critic/rewards/group_size": "samples of a prompt that have a reward",
    "critic/rewards/max": "best reward of the samples that were learned from",
    "critic/rewards/min": "worst reward of the samples that were learned from",
    "critic/rewards/clip_ratio": "share of rewards that was clipped",
    "critic/missing_count": "samples without a reward; they taught nothing",
    "critic/missing_ratio": "share of samples without a reward; they taught nothing",
    "critic/diversity": "how different the pictures of a prompt are",
    "critic/advantages/*": "how much better than the others of their prompt samples count",
    "critic/returns/*": "what the policy gradient weighs samples by",
    "critic/score/*": "rewards before anything is added to them",
    "critic/*/reward_correlation": "whether what is only watched is rewarded: 0 is good for what should not matter",
    "critic/vf_*": "the value network",
    "critic/vpred_mean": "mean prediction of the value network",
    "critic/*/mean": "mean of this component of the reward",
    "response_length/clip_ratio": "share of responses that were cut at the limit",
    "response_length/*": "tokens of a response",
    "old_policy/decay": "weight of the past in the policy that samples",
    "old_policy/*": "how the policy that samples followed",
    "rollout_corr/rollout_is_eff_sample_size": "share of the samples that counts after weighting: near 1 is good",
    "rollout_corr/logprob_abs_diff*": "by how much sampler and trainer disagree about log-probs",
    "rollout_corr/kl": "distance between sampler and trainer",
    "rollout_corr/*": "importance correction between sampler and trainer",
}


def health(run: Summary, shown: Collection[str]) -> str:
    """HTML; nothing where nothing has changed.

    Args:
        run: of the report.
        shown: metrics that stand elsewhere on the page.
    """
    names = sorted({name for row in run.rows for name in row if name.startswith(tuple(PARTS))})
    rewards = points_of(run, "critic/rewards/mean")
    curves: dict[tuple[tuple[int, float | None], ...], list[str]] = {}
    constant = []
    for name in names:
        points = points_of(run, name)
        if name in shown or name == "critic/rewards/mean" or points == rewards:
            continue  # the only component is the reward
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
    """What a metric shows; nothing where its name has to do."""
    return next((words for pattern, words in EXPLAINED.items() if fnmatchcase(name, pattern)), "")


def points_of(run: Summary, key: str) -> list[tuple[int, float | None]]:
    """A metric by update, where it is there."""
    found = ((row[STEP], mean(row, key)) for row in run.rows)
    return [(update, value) for update, value in found if value is not None]
