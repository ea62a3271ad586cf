"""Losses as functions of tensors. They return one value per term; sums and divisions happen once, elsewhere."""

from burnish.losses.correction import importance_weights, mean_weight, rejection_mask
from burnish.losses.correction_metrics import (
    correction_metrics,
    joint_metrics,
    rejected_fractions,
    rejection_metrics,
    variance_proxies,
    variance_proxy_metrics,
    weight_metrics,
)
from burnish.losses.distillation import distill_fm_mse, distill_kl
from burnish.losses.kl import gaussian_kl, squared_distance
from burnish.losses.matching import (
    advantage_weighted_matching,
    awm_logprob,
    flow_matching,
    matching_error,
    negative_aware,
)
from burnish.losses.policy_gradient import (
    LOG_RATIO_MAX,
    clipped_surrogate,
    guard_log_ratio,
    guard_weights,
    kl_trust_region,
    ratio_of,
    surrogate_of,
)
from burnish.losses.preference import (
    centred_distillation,
    diffusion_dpo,
    group_preference,
    hold_clipped,
    preference_loss,
)

__all__ = [
    "LOG_RATIO_MAX",
    "advantage_weighted_matching",
    "awm_logprob",
    "centred_distillation",
    "clipped_surrogate",
    "correction_metrics",
    "diffusion_dpo",
    "distill_fm_mse",
    "distill_kl",
    "flow_matching",
    "gaussian_kl",
    "group_preference",
    "guard_log_ratio",
    "guard_weights",
    "hold_clipped",
    "importance_weights",
    "joint_metrics",
    "kl_trust_region",
    "matching_error",
    "mean_weight",
    "negative_aware",
    "preference_loss",
    "ratio_of",
    "rejected_fractions",
    "rejection_mask",
    "rejection_metrics",
    "squared_distance",
    "surrogate_of",
    "variance_proxies",
    "variance_proxy_metrics",
    "weight_metrics",
]
