"""Losses over response tokens [B, T] with a mask of the tokens that the policy chose."""

from burnish.losses.tokens.aggregate import Mode, aggregate, size, terms, weights
from burnish.losses.tokens.balance import expert_load, load_balancing
from burnish.losses.tokens.entropy import entropy, high_entropy_mask
from burnish.losses.tokens.kl import AdaptiveKl, FixedKl, Kind, kl_estimate
from burnish.losses.tokens.masking import log_ratio, masked, sequence_mean
from burnish.losses.tokens.policy import cispo, cpgd, gmpo, gspo, ppo_clip, reinforce, sapo
from burnish.losses.tokens.preference import dpo, ipo, kto, kto_reference_point, sft
from burnish.losses.tokens.reward_model import distillation, pairwise, process_reward
from burnish.losses.tokens.value import value_loss

__all__ = [
    "AdaptiveKl",
    "FixedKl",
    "Kind",
    "Mode",
    "aggregate",
    "cispo",
    "cpgd",
    "distillation",
    "dpo",
    "entropy",
    "expert_load",
    "gmpo",
    "gspo",
    "high_entropy_mask",
    "ipo",
    "kl_estimate",
    "kto",
    "kto_reference_point",
    "load_balancing",
    "log_ratio",
    "masked",
    "pairwise",
    "ppo_clip",
    "process_reward",
    "reinforce",
    "sapo",
    "sequence_mean",
    "sft",
    "size",
    "terms",
    "value_loss",
    "weights",
]
