"""Metrics of optimizer steps: extremes over ranks, and how tokens are shared out."""

from __future__ import annotations

import math

import torch

from burnish.losses.policy import extremes_of
from burnish.training.step_metrics import extreme_of, length_metrics, step_metrics


def test_extremes_are_those_of_all_ranks_that_had_terms():
    sums = {
        "extreme 0 actor/ratio_max": 1.5, "extreme 1 actor/ratio_max": 2.0, "extreme 2 actor/ratio_max": -math.inf,
        "extreme 0 actor/ratio_min": 0.5, "extreme 1 actor/ratio_min": 0.25, "extreme 2 actor/ratio_min": math.inf,
    }  # fmt: skip
    assert step_metrics(sums) == {"actor/ratio_max": 2.0, "actor/ratio_min": 0.25}


def test_over_the_steps_of_an_update_an_extreme_stays_one():
    assert extreme_of("actor/ratio_max")([1.0, 3.0, 2.0]) == 3.0
    assert extreme_of("actor/ratio_min")([1.0, 3.0, 2.0]) == 1.0
    assert extreme_of("actor/ratio_mean")([1.0, 3.0, 2.0]) == 2.0
    assert extreme_of("global_seqlen/max")([1.0, 3.0]) == 2.0


def test_extremes_of_terms_that_count():
    ratio, mask = torch.tensor([[1.0, 9.0], [0.5, 2.0]]), torch.tensor([[True, False], [True, True]])
    found = extremes_of(ratio, (ratio - 1).abs(), mask)
    assert {name: float(value) for name, value in found.items()} == {
        "actor/ratio_max": 2.0, "actor/ratio_min": 0.5, "rollout_corr/logprob_abs_diff_max": 1.0,
    }  # fmt: skip
    assert extremes_of(None, None) == extremes_of(ratio[:0], None) == {}


def test_tokens_of_ranks():
    assert length_metrics([4, 1, 1, 2, 3], 2) == {
        "global_seqlen/min": 5.0, "global_seqlen/max": 6.0, "global_seqlen/minmax_diff": 1.0,
        "global_seqlen/balanced_min": 5.0, "global_seqlen/balanced_max": 6.0, "global_seqlen/mean": 5.5,
    }  # fmt: skip
    assert length_metrics([7], 3)["global_seqlen/min"] == 0
