"""Every alarm: raised when its metric leaves, not before, over when it comes back."""

from typing import Literal

import pytest

from burnish.alarms.base import Alarm
from burnish.alarms.drift import Drift
from burnish.alarms.levels import LIMITS, Beyond
from burnish.alarms.ruling import Ruling
from burnish.options.alarms import AlarmOptions

OPTIONS = AlarmOptions()


def statistic(mean: float | None, correlation: float = 0.0, prefix: str = "critic/dark", **more: float) -> dict:
    found = {"mean": mean, "std": 0.1, "error": 0.01, "reward_correlation": correlation} | more
    return {f"{prefix}/{name}": value for name, value in found.items()}


def raised(detector, rows) -> list[tuple[int, Alarm | None]]:
    """What stands after each update."""
    found = []
    for update, row in enumerate(rows, start=1):
        detector.add(update, row)
        found.append((update, detector.alarm))
    return found


def drift(
    options: AlarmOptions = OPTIONS, worse: Literal["higher", "lower"] | None = "higher", alike: bool = False
) -> Drift:
    return Drift("critic/dark", options, prompts=16, samples=8, worse=worse, alike=alike)


def test_a_statistic_that_the_reward_pays_for_is_named_sooner():
    rows = [statistic(0.2 + 0.02 * max(n - 2, 0), 0.8) for n in range(16)]
    plain = [row | {"critic/dark/reward_correlation": 0.0} for row in rows]
    paid = next(update for update, alarm in raised(drift(), rows) if alarm)
    free = next(update for update, alarm in raised(drift(), plain) if alarm)
    assert paid < free
    alarm = raised(drift(), rows)[paid - 1][1]
    assert alarm is not None
    assert alarm.text.startswith("dark rose from 0.200 to ")
    assert "standard deviations of the first samples, since update" in alarm.text
    assert "the reward pays for it (correlation +0.80 among samples of a prompt)" in alarm.text
    other = [row | {"critic/dark/reward_correlation": -0.8} for row in rows]  # it moves against what is paid
    told = [[alarm for _, alarm in raised(drift(), some) if alarm][:1] for some in (other, plain)]
    assert told[0] == told[1]


def test_a_drift_is_over_when_it_comes_back_and_may_come_again():
    means = [0.2] * 2 + [0.5] * 3 + [0.2] * 8 + [0.5] * 2
    assert [update for update, alarm in raised(drift(), map(statistic, means)) if alarm] == [4, 5, 6, 15]


def test_where_neither_way_is_worse_it_is_an_alarm_while_the_reward_pays_for_the_way_it_goes():
    rising, falling = (0.2, 0.2, 0.6, 0.6), (0.6, 0.6, 0.2, 0.2)
    for means, way in ((rising, 1), (falling, -1)):
        for correlation, told in ((0.6, True), (0.15, True), (0.0, False), (-0.6, False)):
            rows = [statistic(mean, way * correlation) for mean in means]
            alarm = raised(drift(worse=None), rows)[-1][1]
            assert (alarm is not None) == told
            assert alarm is None or f"the reward pays for it (correlation {way * correlation:+.2f}" in alarm.text
        unknown = [{k: v for k, v in row.items() if "correlation" not in k} for row in rows]  # one sample of a prompt
        assert raised(drift(worse=None), unknown)[-1][1] is not None


def test_the_options_are_read():
    rows = [statistic(mean) for mean in (0.2, 0.2, 0.35, 0.35)]
    assert raised(drift(), rows)[-1][1] is None
    assert raised(drift(AlarmOptions(shift=1.0)), rows)[-1][1] is not None
    vague = [row | {"critic/dark/error": 0.07} for row in [statistic(mean) for mean in (0.2, 0.2, 0.5, 0.5)]]
    assert raised(drift(AlarmOptions(false_alarms=0.5)), vague)[-1][1] is not None
    assert raised(drift(AlarmOptions(false_alarms=1e-9)), vague)[-1][1] is None
    rows = [{"actor/pg_clipfrac": value} for value in (0.1, 0.7, 0.7)]
    assert raised(Beyond("clip_fraction", OPTIONS), rows)[-1][1] is None
    assert raised(Beyond("clip_fraction", AlarmOptions(updates=2, limits={"clip_fraction": 0.5})), rows)[-1][1]


START, LATER = [1.0] * 21, 4
BEYOND = {  # metrics in the first updates, and then, when the alarm has to be raised
    "missing_rewards": ({"critic/missing_ratio": 0.0}, {"critic/missing_ratio": 0.2}),
    "constant_reward": (
        {"critic/rewards/max": 1.0, "critic/rewards/min": 0.0}, {"critic/rewards/max": 0.5, "critic/rewards/min": 0.5},
    ),
    "saturation": ({"critic/rewards/solved_ratio": 0.9}, {"critic/rewards/solved_ratio": 1.0}),
    "group_collapse": ({"critic/rewards/dead_ratio": 0.5}, {"critic/rewards/dead_ratio": 0.9}),
    "ratio": ({"actor/ratio_mean": 1.01}, {"actor/ratio_mean": 0.8}),
    "mismatch": ({"rollout_corr/kl": 0.001}, {"rollout_corr/kl": 0.3}),
    "clip_fraction": ({"actor/pg_clipfrac": 0.2}, {"actor/pg_clipfrac": 0.9}),
    "kl": ({"actor/ppo_kl": 0.01}, {"actor/ppo_kl": -0.5}),
    "stale_samples": (
        {"rollout_corr/rollout_is_eff_sample_size": 0.9}, {"rollout_corr/rollout_is_eff_sample_size": 0.1},
    ),
    "velocity": ({"actor/velocity_norm_ratio": 1.1}, {"actor/velocity_norm_ratio": 0.4}),
    "entropy_collapse": ({"actor/entropy": 0.5}, {"actor/entropy": 0.01}),
    "entropy_growth": ({"actor/entropy": 0.5}, {"actor/entropy": 2.0}),
    "variety_collapse": ({"critic/diversity": 0.06}, {"critic/diversity": 0.01}),
    "gradient": ({"actor/grad_norm": 0.5}, {"actor/grad_norm": 8.0}),
    "unfamiliar_form": ({"response/unfamiliar_form": 0.01}, {"response/unfamiliar_form": 0.8}),
}  # fmt: skip


def test_every_level_is_tried():
    assert BEYOND.keys() == LIMITS.keys()


@pytest.mark.parametrize("name", BEYOND)
def test_a_level_is_named_after_three_updates_beyond_it(name):
    usual, beyond = BEYOND[name]
    rows = [usual] * 22 + [beyond] * 2 + [usual] + [beyond] * 3 + [{}, usual]
    found = raised(Beyond(name, OPTIONS), rows)
    assert [update for update, alarm in found if alarm] == [28, 29]  # an update without the metric says nothing
    alarm = found[27][1]
    assert alarm is not None
    assert (alarm.name, alarm.since) == (name, 26)
    assert f"for 3 updates in a row, since update 26); in the first updates {LIMITS[name].metric} was" in alarm.text
    assert alarm.text.endswith(LIMITS[name].means)


def test_samples_of_older_weights_are_no_mismatch():
    # as recorded where CPS samples one update ahead: its last steps have hardly any noise
    row = {"rollout_corr/kl": 2050.0, "rollout_corr/log_ppl_abs_diff": 2e-4, "pipeline/staleness/max": 1.0}
    row |= {
        "rollout_corr/rollout_is_eff_sample_size": 0.16,
        "rollout_corr/rollout_is_applied_eff_sample_size": 0.48,
    }
    for name in ("mismatch", "stale_samples"):
        assert raised(Beyond(name, OPTIONS), [row] * 8)[-1][1] is None
    same = row | {"pipeline/staleness/max": 0.0, "rollout_corr/log_ppl_abs_diff": 0.02}
    assert raised(Beyond("mismatch", OPTIONS), [same] * 3)[-1][1] is not None
    # as recorded where CPS samples with adapters that are merged in bfloat16
    rounded = {"rollout_corr/kl": 233.0, "rollout_corr/log_ppl_abs_diff": 2.6e-5}
    assert raised(Beyond("mismatch", OPTIONS), [rounded] * 8)[-1][1] is None
    old = row | {"rollout_corr/rollout_is_applied_eff_sample_size": 0.1}
    assert raised(Beyond("stale_samples", OPTIONS), [old] * 3)[-1][1] is not None


def rewards(ocr: float, style: float, share: float) -> dict:
    return (
        statistic(ocr, prefix="critic/ocr", reward_share=share)
        | statistic(style, prefix="critic/style", reward_share=1 - share)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("style", "share", "named"), [(0.3, 0.97, True), (0.3, 0.6, False), (0.7, 0.97, False), (0.5, 0.97, False)]
)
def test_a_reward_that_rules_is_named_where_another_one_gets_worse(style, share, named):
    rows = [rewards(0.5, 0.5, 0.6)] * 2 + [rewards(0.9, style, share)] * 8
    alarm = raised(Ruling({"ocr": 1.0, "style": 0.5}, OPTIONS, prompts=16), rows)[-1][1]
    assert (alarm is not None) == named
    if alarm is not None:
        assert alarm.text.startswith("ocr makes 97 % of the reward's differences among samples of a prompt, and style")
    worse = raised(Ruling({"ocr": 1.0, "style": -0.5}, OPTIONS, prompts=16), rows)[-1][1]  # lower is better
    assert (worse is not None) == (style == 0.7)
