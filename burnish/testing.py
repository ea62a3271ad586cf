"""What tests of plug-ins ask of them. Each function raises AssertionError where a promise is not kept.

    from burnish.testing import check_reward

    def test_mine():
        check_reward(Mine(), images, prompts)

Burnish's own rewards, environments and parts of algorithms are held to the same.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnish.registry import explanation, fields
from burnish.rl.algorithm import call

if TYPE_CHECKING:
    from burnish.environments.base import Environment, Observation
    from burnish.rewards.base import AnyReward, Score
    from burnish.rl.advantages import Rewards
    from burnish.types.prompt import Prompt

ANYTHING = 7.5  # stands where it must not be read


def check_options(options: Any) -> None:
    """Each option of a registered class, or of an object of one, is explained by the text below it.

    Raises:
        AssertionError: an option is not.
    """
    unexplained = [name for name in fields(options) if not explanation(options, name)]
    assert not unexplained, f"options without an explanation below them: {', '.join(unexplained)}"


def check_reward(reward: AnyReward, samples: Sequence[Any], prompts: Sequence[Prompt], *, rel: float = 1e-5) -> None:
    """A score for each sample: finite or missing, the same when asked again and, as far as ``rel``, in any batch.

    Args:
        reward: with its options.
        samples: two at least, in the form that it reads: images uint8 [H, W, 3], clips, or responses.
        prompts: of each.
        rel: by how much a value may differ in another batch, relative to the largest; kernels round by its size.

    Raises:
        AssertionError: a promise is not kept.
        ValueError: there is not one score for each sample.
    """
    check_options(reward)
    kept = [np.array(sample) if isinstance(sample, np.ndarray) else sample for sample in samples]
    told = reward(samples, prompts)
    for score in told:
        assert score.value is None or math.isfinite(score.value), f"a value is {score.value}"
        assert score.value is not None or score.note or not score.applicable, "a value is missing without a reason"
        if score.value is not None:
            assert set(reward.numbers) <= score.numbers.keys(), f"{score.numbers} lacks one of {reward.numbers}"
    for before, after in zip(kept, samples, strict=True):
        assert np.array_equal(before, after) if isinstance(before, np.ndarray) else before == after, "a sample changed"
    scale = max((abs(one.value) for one in told if one.value is not None), default=0.0)
    _same(told, reward(samples, prompts), 0.0, "asked again, it gives another value")
    again = pickle.loads(pickle.dumps(reward))
    _same(told, again(samples, prompts), 0.0, "pickled, it gives another value")
    if reward.compares() == "samples":
        alone = [reward([sample], [prompt])[0] for sample, prompt in zip(samples, prompts, strict=True)]
        _same(told, alone, rel * scale, "alone, a sample has another value")
        turned = reward(samples[::-1], prompts[::-1])[::-1]
        _same(told, turned, rel * scale, "in another order, a sample has another value")


def _same(one: Sequence[Score], other: Sequence[Score], within: float, said: str) -> None:
    for number, (before, after) in enumerate(zip(one, other, strict=True)):
        near = before.value == after.value or (
            before.value is not None and after.value is not None and abs(before.value - after.value) <= within
        )
        assert near, f"{said}: sample {number} {after.value} in place of {before.value}"


def check_environment(environment: Environment, prompt: Prompt, responses: Sequence[str], seed: int = 0) -> None:
    """A dialogue is a function of prompt, seed and responses, whatever other dialogues do in between.

    Args:
        environment: with its options.
        prompt: of the dialogue.
        responses: one for each turn; further ones are left out once it is over.
        seed: of its draws.

    Raises:
        AssertionError: a promise is not kept.
    """
    check_options(environment)
    episodes = [environment.episode(), environment.episode()]
    seen = [[episode.reset(prompt, seed)] for episode in episodes]
    first = seen[0][0]
    assert first.reward is None, "there is a reward before the first response"
    assert not first.done, "a dialogue is over before it began"
    for response in responses:
        for episode, past in zip(episodes, seen, strict=True):
            if not past[-1].done:
                past.append(episode.step(response))
    for past in seen:
        assert [_told(one) for one in past] == [_told(one) for one in seen[0]], "the same dialogue went another way"
        assert all(one.reward is None or math.isfinite(one.reward) for one in past), "a reward is not finite"


def _told(observation: Observation) -> tuple[Any, ...]:
    shown = [np.asarray(image).tobytes() for image in (*observation.images, *observation.videos)]
    return observation.words, shown, observation.reward, observation.done, observation.role


def check_advantage(part: Any, rewards: Rewards) -> None:
    """Advantages are finite, 0 where nothing counts, move with their samples, and never read a missing reward.

    Args:
        part: a registered advantage with its options.
        rewards: of B samples, of which some are missing.

    Raises:
        AssertionError: a promise is not kept.
    """
    from burnish.rl.advantages import Advantages

    def advantage(rewards: Rewards) -> Tensor:
        found = call(part, rewards)
        return (found if isinstance(found, Advantages) else Advantages.of(found, rewards.mask)).advantage

    check_options(part)
    told = advantage(rewards)
    assert told.shape == rewards.mask.shape, f"shape {list(told.shape)} in place of {list(rewards.mask.shape)}"
    assert bool(torch.isfinite(told).all()), "an advantage is not finite"
    assert not bool(told[~rewards.mask].any()), "there is an advantage where nothing counts"
    other = replace(rewards, reward=rewards.reward.masked_fill(rewards.missing, ANYTHING))
    assert torch.equal(advantage(other), told), "a missing reward moved an advantage"
    order = torch.arange(len(rewards.reward)).flip(0)
    # every tensor's first axis is the sample
    turned: dict[str, Any] = {name: value[order] for name, value in vars(rewards).items() if isinstance(value, Tensor)}
    torch.testing.assert_close(advantage(replace(rewards, **turned)), told[order])


def check_surrogate(part: Any, logprob: Tensor, old: Tensor, advantage: Tensor, mask: Tensor) -> None:
    """A surrogate is finite, 0 where masked whatever stands there, the same for a row alone, and pulls at log-probs.

    Args:
        part: a registered surrogate with its options.
        logprob, old, advantage, mask: [B, K], as ``SurrogateFunction`` has them.

    Raises:
        AssertionError: a promise is not kept.
    """
    check_options(part)
    hidden = [value.masked_fill(~mask, ANYTHING) for value in (logprob, old, advantage)]
    _check_terms(lambda *given: call(part, *given).loss, [logprob, old, advantage], hidden, mask)


def check_kl(part: Any, logprob: Tensor, reference: Tensor, mask: Tensor) -> None:
    """An estimate of a KL is finite, 0 where masked and of equal policies, the same for a row alone, with a gradient.

    Args:
        part: a registered estimator with its options.
        logprob, reference, mask: [B, K], as ``KlFunction`` has them.

    Raises:
        AssertionError: a promise is not kept.
    """
    check_options(part)
    hidden = [value.masked_fill(~mask, ANYTHING) for value in (logprob, reference)]
    _check_terms(lambda *given: call(part, *given), [logprob, reference], hidden, mask)
    assert not bool(call(part, logprob, logprob, mask).any()), "equal policies are apart"


def _check_terms(function: Callable[..., Tensor], given: list[Tensor], hidden: list[Tensor], mask: Tensor) -> None:
    policy = given[0].detach().requires_grad_()
    told = function(policy, *given[1:], mask)
    assert told.shape == mask.shape, f"shape {list(told.shape)} in place of {list(mask.shape)}"
    assert bool(torch.isfinite(told).all()), "a term is not finite"
    assert not bool(told[~mask].any()), "there is a term where nothing counts"
    told.sum().backward()
    slope = policy.grad
    assert slope is not None, "there is no gradient"
    assert bool(torch.isfinite(slope).all()), "a gradient is not finite"
    assert bool(slope[mask].any()), "there is no gradient"
    assert not bool(slope[~mask].any()), "there is a gradient where nothing counts"
    assert torch.equal(function(*hidden, mask), told.detach()), "what is masked moved a term"
    for row in range(len(mask)):
        alone = function(*(value[row : row + 1] for value in (*given, mask)))
        torch.testing.assert_close(alone, told.detach()[row : row + 1])
