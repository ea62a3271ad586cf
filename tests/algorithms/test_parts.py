"""Advantages, surrogates and KL estimators by name, ours and those of users, for denoising steps and for tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from burnish.advantages.groups import group_advantages
from burnish.advantages.rewards import Rewards
from burnish.algorithms.base import advantages_of
from burnish.algorithms.flow.policy_gradient import FlowGRPO
from burnish.algorithms.kl import step_kl
from burnish.algorithms.language.policy_gradient import GRPO
from burnish.config import load
from burnish.losses.kl import kl_estimate
from burnish.losses.policy import Surrogate, log_ratio, masked
from burnish.registry import KINDS, register
from burnish.types.rollout import Scores
from burnish.utils.errors import ConfigError
from tests.support.language_tables import annotated, judged, observed
from tests.support.step_batches import SAMPLES, STEPS, gradient, step_batch
from tests.support.token_losses import mask_of

FLOW, TOKENS = ("quickstart", "algorithm=flow_grpo"), ("vlm_quickstart", "algorithm=grpo")


@pytest.mark.parametrize("half", [FLOW, TOKENS], ids=["flow", "language"])
def test_a_part_is_chosen_by_its_name_alone_or_with_options(half):
    recipe, algorithm = half
    made = load(recipe, [algorithm, "algorithm.surrogate=gspo", "algorithm.advantage=leave_one_out"]).algorithm
    assert (made.part("surrogate").name, made.part("advantage").name) == ("gspo", "leave_one_out")
    options = ["algorithm.surrogate={name: sapo, tau_neg: 2}", "algorithm.advantage={name: returns, gamma: 0.5}"]
    made = load(recipe, [algorithm, *options]).algorithm
    assert made.part("surrogate").tau_neg == 2.0
    assert made.part("advantage").gamma == 0.5
    again = type(made)(surrogate={"name": "sapo", "tau_neg": 2.0}, advantage={"name": "returns", "gamma": 0.5})
    assert again.part("surrogate") == made.part("surrogate")


def test_without_a_choice_an_algorithm_has_its_own_with_its_options():
    made = load("quickstart", ["algorithm=flow_grpo"]).algorithm
    assert made.part("surrogate").name == "flow_clip"
    assert made.part("surrogate").clip == made.clip
    assert GRPO(clip_high=0.3).part("surrogate").clip_high == 0.3
    assert GRPO(advantage_std="none").part("advantage").advantage_std == "none"


def test_what_a_recipe_says_of_parts_that_another_takes_the_place_of_is_left_out():
    """The quickstart sets clip for flow_grpo: whoever chooses another surrogate need not know."""
    assert load("quickstart", ["algorithm=flow_grpo"]).algorithm.clip != FlowGRPO().clip
    assert load("quickstart", ["algorithm=flow_grpo", "algorithm.surrogate=sapo"]).algorithm.clip == FlowGRPO().clip
    nothing = load("quickstart", ["algorithm=flow_grpo", "algorithm.surrogate=null", "algorithm.clip=0.5"])
    assert nothing.algorithm.clip == 0.5


@pytest.mark.parametrize(
    ("half", "options", "message"),
    [
        (FLOW, ["surrogate=gsp"], "surrogate is gsp; did you mean gspo"),
        (FLOW, ["surrogate={clip: 2}"], "it must be one of cispo, clip"),
        (FLOW, ["surrogate=3"], "surrogate is 3; it must be text"),
        (FLOW, ["surrogate={name: gspo, clp: 1}"], "surrogate.clp is 1, but there is no such option; did you mean"),
        (FLOW, ["surrogate={name: gspo, clip: 2}"], "surrogate.clip is 2.0; ratios below"),
        (TOKENS, ["surrogate={name: sapo, tau_neg: 0}"], "surrogate.tau_neg is 0; it must be > 0"),
        (TOKENS, ["advantage={name: returns, gama: 1}"], "advantage.gama is 1, but there is no such option; did you"),
        (FLOW, ["surrogate=sapo", "clip=0.5"], "clip is 0.5, but surrogate is sapo, .* leave it out$"),
        (TOKENS, ["surrogate=gspo", "clip=0.5"], "clip is 0.5, but surrogate is gspo, .* or set surrogate.clip"),
        (TOKENS, ["advantage=centred", "advantage_std=none"], "advantage_std is none, but advantage is centred"),
        (FLOW, ["advantage=gae"], "gae, which is for responses alone"),
        (FLOW, ["advantage=greedy_baseline"], "greedy_baseline, which is for responses alone"),
        (FLOW, ["surrogate=gspo", "fold_timesteps=false"], "gspo needs all steps of a sample in one forward"),
        (FLOW, ["surrogate=reinforce", "old_logprob=sampler"], "the surrogate has no ratio"),
        (TOKENS, ["advantage=gae"], "reads a value network, and only ppo trains one"),
        (("vlm_quickstart", "algorithm=ppo"), ["advantage=group"], "group, which reads no value network"),
        (("quickstart", "algorithm=flow_dppo"), ["surrogate=gspo"], "flow_dppo is defined by its own"),
        (("quickstart", "algorithm=diffusion_nft"), ["surrogate=gspo"], "never reads it"),
        (FLOW, ["kl_coef=0.1", "kl_form=k9"], "kl_form is k9; it must be one of published, exact, means, k1"),
        (TOKENS, ["kl.kind=k9"], "kl.kind is k9; it must be one of k1"),
        (TOKENS, ["advantage_aggregation=gdpo", "reward_clip=1"], "compares each reward by itself, but reward_clip"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused_by_name(half, options, message):
    recipe, algorithm = half
    with pytest.raises(ConfigError, match=message):
        load(recipe, [algorithm, *(f"algorithm.{option}" for option in options)])


@pytest.mark.parametrize("recipe", ["vlm_quickstart", "sd35/flow_grpo"])
def test_a_part_may_be_chosen_without_the_algorithm(recipe):
    config = load(recipe, ["algorithm.advantage=leave_one_out", "algorithm.surrogate={name: gspo, clip: 0.01}"])
    assert config.algorithm.name == load(recipe).algorithm.name
    assert (config.algorithm.advantage.name, config.algorithm.surrogate.name) == ("leave_one_out", "gspo")


def test_a_reward_by_itself_has_nothing_to_be_compared_with():
    alone = [TOKENS[1], "rewards.format.weight=0", "algorithm.advantage_aggregation=each"]
    with pytest.raises(ConfigError, match="the only reward with a weight"):
        load(TOKENS[0], alone)


@pytest.fixture
def own() -> Iterator[None]:
    """Functions as users write them, known by name for the length of a test."""

    @register("surrogate", "own_clip")
    def own_clip(
        logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor, *, clip: float = 0.2, dual: float | None = None
    ) -> Surrogate:
        """PPO's, once more."""
        ratio = log_ratio(logprob, old, mask).exp()
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip))
        return Surrogate(masked(loss, mask), masked(ratio.detach(), mask), {"own/advantage": masked(advantage, mask)})

    @register("advantage", "own_group")
    def own_group(rewards: Rewards, *, scale: float = 1.0) -> Tensor:
        """Dr. GRPO's, times a number."""
        return scale * group_advantages(rewards.reward, rewards.group, rewards.missing, scale="none")

    @register("advantage", "own_steps")
    def own_steps(rewards: Rewards) -> Tensor:
        """An advantage of each action."""
        return rewards.actions

    @register("advantage", "own_odd")
    def own_odd(rewards: Rewards) -> Tensor:
        """Of a wrong shape."""
        return rewards.reward[:-1]

    @register("kl estimator", "own_k2")
    def own_k2(logprob: Tensor, reference: Tensor, mask: Tensor, *, factor: float = 1.0) -> Tensor:
        """k2, once more."""
        return factor * (logprob - reference).square() / 2

    yield
    for kind in KINDS.values():
        for name in [name for name in kind.entries if name.startswith("own_")]:
            del kind.entries[name]


def without(metrics: dict[str, float], *parts: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if not any(part in name for part in parts)}


@pytest.mark.usefixtures("own")
class TestOfUsers:
    def test_a_surrogate_of_steps(self):
        ours, theirs = FlowGRPO(clip=0.02), FlowGRPO(surrogate={"name": "own_clip", "clip": 0.02})
        batch = step_batch(ours)
        total, slope, _ = gradient(ours, batch, 3)
        other, other_slope, metrics = gradient(theirs, batch, 3)
        assert other == pytest.approx(total, rel=1e-5)
        torch.testing.assert_close(other_slope, slope, rtol=1e-4, atol=1e-6)
        assert metrics["own/advantage"] == pytest.approx(float(batch.advantage[batch.trained].mean()), rel=1e-4)

    def test_a_surrogate_of_tokens(self):
        reported = ("pg_clipfrac", "ppo_kl", "own/")
        ours = observed(GRPO(old_logprob="sampler", clip=0.1))
        theirs = observed(GRPO(old_logprob="sampler", surrogate={"name": "own_clip", "clip": 0.1}))
        kept = [
            [one for one in seen if not (isinstance(one, tuple) and any(part in one[0] for part in reported))]
            for seen in (ours, theirs)
        ]
        assert repr(kept[0]) == repr(kept[1])

    @pytest.mark.parametrize("made", [FlowGRPO, GRPO])
    def test_an_advantage(self, made):
        reward, group = torch.tensor([1.0, 0.0, 0.25, 0.5]), torch.tensor([0, 0, 1, 1])
        scores = Scores(
            reward=reward, missing=torch.zeros(4, dtype=torch.bool), components=reward[:, None], names=("r",),
            weights=(1.0,), notes=[""] * 4,
        )  # fmt: skip
        rewards = Rewards.of(scores, group, 3)
        found = advantages_of(made(advantage={"name": "own_group", "scale": 2.0}), rewards)
        assert found.advantage.tolist() == [[value] * 3 for value in (1.0, -1.0, -0.25, 0.25)]
        assert advantages_of(made(advantage="own_steps"), rewards).advantage[:, 2].tolist() == reward.tolist()
        with pytest.raises(ValueError, match=r"has shape \[3\]; it must be \[4\], .* or \[4, 3\]"):
            advantages_of(made(advantage="own_odd"), rewards)

    def test_an_advantage_is_learned_from(self):
        algorithm = GRPO(advantage={"name": "own_group", "scale": 2.0})
        scored = judged(torch.tensor([1.0, 0.0]), mask_of([2, 1], 2), torch.zeros(2, dtype=torch.long))
        assert algorithm.credit(annotated(algorithm, scored))[0].advantage.tolist() == [[1, 1], [-1, 0]]
        with pytest.raises(ValueError, match="an advantage has shape"):
            GRPO(advantage="own_odd").credit(annotated(algorithm, scored))

    def test_a_kl_of_steps(self):
        ours, theirs = (FlowGRPO(kl_coef=0.1, kl_form=form) for form in ("k2", "own_k2"))
        batch = step_batch(ours)
        assert gradient(ours, batch, 3)[2]["actor/kl_loss"] > 0
        assert gradient(ours, batch, 3)[0] == gradient(theirs, batch, 3)[0]
        assert torch.equal(gradient(ours, batch, 3)[1], gradient(theirs, batch, 3)[1])

    @pytest.mark.parametrize("route", ["loss", "reward"])
    def test_a_kl_of_tokens(self, route):
        ours, theirs = (observed(GRPO(kl={"kind": kind, "route": route, "coef": 0.1})) for kind in ("k2", "own_k2"))
        assert repr(ours) == repr(theirs)
        assert repr(ours) != repr(observed(GRPO()))

    def test_their_options_are_checked_like_ours(self):
        made = load("quickstart", ["algorithm=flow_grpo", "algorithm.surrogate={name: own_clip, dual: 3}"]).algorithm
        assert made.part("surrogate").dual == 3.0
        with pytest.raises(ConfigError, match=r"surrogate\.clp is 3, but there is no such option"):
            load("quickstart", ["algorithm=flow_grpo", "algorithm.surrogate={name: own_clip, clp: 3}"])


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k1+", "k3+", "unbiased"])
def test_a_kl_of_steps_from_their_log_probs(kind):
    """The same estimates as of tokens: of recorded steps, under the policy and under the reference."""
    algorithm = FlowGRPO(kl_coef=0.1, kl_form=kind)
    batch = step_batch(algorithm)
    batch.trained = torch.ones(SAMPLES, STEPS, dtype=torch.bool)
    (part,) = algorithm.micro_batches(batch, 100)
    step = algorithm.step(part.steps, lambda x, *rest: x * 0.1)
    logprob = step.logprob(part.steps.next_state, algorithm.density)
    reference = replace(step, mean=part.reference_mean).logprob(part.steps.next_state, algorithm.density)
    old = part.old if kind == "unbiased" else None
    expected = kl_estimate(logprob, reference, torch.ones_like(logprob, dtype=torch.bool), kind, old=old)
    assert expected.abs().max() > 0
    assert torch.equal(step_kl(kind, step, part, logprob, part.old, algorithm.density), expected)
