"""Rewards by their names, and what they say."""

from burnish.registry import lookup
from burnish.rewards.base import Reward, Score
from burnish.rewards.calls import call_reward
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.prompt import Prompt


def reward(name: str, **options) -> LanguageReward:
    return lookup("language reward", name)(**options)


def flow_reward(name: str, **options) -> Reward:
    return lookup("flow reward", name)(**options)


def ask(one: LanguageReward, *pairs: tuple[str, str | None]) -> list[Score]:
    """Scores on responses, each with the right answer."""
    responses = [Response(text) for text, _ in pairs]
    scores = call_reward(one, responses, [Prompt(text="?", answer=answer) for _, answer in pairs])
    assert isinstance(scores, list), scores.fault
    return scores


def values(one: LanguageReward, *pairs: tuple[str, str | None]) -> list[float | None]:
    return [score.value for score in ask(one, *pairs)]


def values_of(one: Reward, samples, prompts) -> list[float | None]:
    return [score.value for score in one(samples, prompts)]
