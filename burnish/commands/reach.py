"""What a run's configuration makes this machine run, or talk to, when the run is judged or sampled from."""

from __future__ import annotations

from burnish.config import RunConfig
from burnish.rewards.images.function import Function
from burnish.rewards.text.function import LanguageFunction
from burnish.rewards.text.remote import Remote


def reach(config: RunConfig) -> list[str]:
    """Options that name code, programs and servers of their own, with their values."""
    found = []
    for label, reward in config.rewards.items():
        if isinstance(reward, Function | LanguageFunction):
            found.append(f"rewards.{label}.path={reward.path}")
        elif isinstance(reward, Remote):
            token = f" (with the token in {reward.token_variable})" if reward.token_variable else ""
            found.append(f"rewards.{label}.url={reward.url}{token}")
    return found + config.programs()
