"""The user's own functions that a run calls, by their content: a run that goes on may find others in their place."""

from __future__ import annotations

import hashlib

from burnish.config.language import LanguageConfig
from burnish.config.run import RunConfig
from burnish.utils.user_code import code_of


def digests(config: RunConfig) -> dict[str, str]:
    """A hash of the file of each function, by who calls it; what a file imports in turn is not looked at."""
    callers = {f"rewards.{label}": reward.user_code() for label, reward in config.rewards.items()}
    if isinstance(config, LanguageConfig) and config.environment is not None:
        callers["environment"] = config.environment.user_code()
    found = {f"{caller} ({path})": code_of(path) for caller, paths in callers.items() for path in paths}
    return {who: hashlib.sha256(code).hexdigest()[:16] for who, code in found.items() if code is not None}
