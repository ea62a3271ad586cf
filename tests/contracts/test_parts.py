"""What algorithms are made of keeps what plug-ins are asked for too: options, advantages, surrogates, KL estimators."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from burnish.registry import KINDS, lookup, names, register
from burnish.rl.advantages import Rewards
from burnish.rl.kl import kl_estimate
from burnish.testing import check_advantage, check_kl, check_options, check_surrogate
from burnish.types.rollout import Scores

SAMPLES, ACTIONS = 6, 4
GIVEN = {
    "pass_at_k": {"pass_k": 2}, "diverse_group": {"diversity": "b"}, "gae": {"gamma": 0.9}, "returns": {"gamma": 0.5},
}  # fmt: skip


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def earned() -> Rewards:
    """By two groups of three, of which one reward is missing."""
    missing = torch.tensor([False, False, False, False, True, False])
    components = drawn(SAMPLES, 2, seed=0).masked_fill(missing[:, None], torch.nan)
    scores = Scores(
        reward=components.sum(1).nan_to_num(), missing=missing, components=components, names=("a", "b"),
        weights=(1.0, 1.0), notes=[""] * SAMPLES,
    )  # fmt: skip
    rewards = Rewards.of(scores, torch.tensor([0, 0, 0, 1, 1, 1]), ACTIONS)
    steps = torch.full((SAMPLES, ACTIONS), torch.nan)
    steps[:, 1], steps[:, 3] = drawn(SAMPLES, seed=1), drawn(SAMPLES, seed=2)
    return replace(
        rewards, steps=steps.masked_fill(~rewards.mask, torch.nan), value=drawn(SAMPLES, ACTIONS, seed=3),
        greedy=torch.tensor([0.1] * 3 + [0.2] * 3),
    )  # fmt: skip


def made(kind: str, name: str) -> Any:
    return lookup(kind, name)(**GIVEN.get(name, {}))


@pytest.mark.parametrize("name", names("advantage"))
def test_an_advantage(name: str) -> None:
    check_advantage(made("advantage", name), earned())


@pytest.mark.parametrize("name", names("surrogate"))
def test_a_surrogate(name: str) -> None:
    mask = torch.tensor([[True] * 4, [True, True, False, False], [False, True, True, True]])
    old = drawn(3, ACTIONS, seed=4) - 1
    near = old + 0.01 * drawn(3, ACTIONS, seed=5)
    check_surrogate(made("surrogate", name), near, old, drawn(3, ACTIONS, seed=6), mask)


def test_a_kl_estimator() -> None:
    @register("kl estimator", "own_k2")
    def own_k2(logprob: Tensor, reference: Tensor, mask: Tensor, *, factor: float = 1.0) -> Tensor:
        """Half the square.

        Args:
            factor: what it is multiplied with.
        """
        return torch.where(mask, factor * (logprob - reference).square() / 2, 0.0)

    mask = torch.tensor([[True, True, False], [True, False, False]])
    ours, theirs = drawn(2, 3, seed=7), drawn(2, 3, seed=8)
    check_kl(lookup("kl estimator", "own_k2")(), ours, theirs, mask)
    assert torch.equal(*(kl_estimate(ours, theirs, mask, kind) for kind in ("own_k2", "k2")))


@pytest.mark.parametrize("kind", [kind for kind, there in KINDS.items() if there.options])
def test_every_option_is_explained(kind: str) -> None:
    for name in names(kind):
        check_options(lookup(kind, name))


BROKEN = {
    "reads what is masked": lambda logprob, old, advantage, mask: -advantage * (logprob - old).exp() + 0 * mask,
    "reads other rows": lambda logprob, old, advantage, mask: torch.where(mask, logprob * logprob[mask].mean(), 0.0),
    "has no gradient": lambda logprob, old, advantage, mask: torch.where(mask, logprob.detach(), 0.0),
    "overflows": lambda logprob, old, advantage, mask: torch.where(mask, (1000 * logprob.abs()).exp(), 0.0),
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_surrogate_is_found_out(why: str) -> None:
    from burnish.rl.surrogates import Surrogate

    @register("surrogate", "broken")
    def broken(logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> Surrogate:
        """Broken."""
        return Surrogate(BROKEN[why](logprob, old, advantage, mask), None, {})

    mask = torch.tensor([[True, True, False], [True, False, False]])
    given = [drawn(2, 3, seed=seed) for seed in range(3)]
    with pytest.raises((AssertionError, RuntimeError)):
        check_surrogate(lookup("surrogate", "broken")(), *given, mask)
