"""Hashes of the user's functions that a run calls, to detect changes when it resumes."""

from __future__ import annotations

import hashlib

from burnish.config.language import LanguageConfig
from burnish.config.run import RunConfig
from burnish.rewards.calling import code_of


def digests(config: RunConfig) -> dict[str, str]:
    """Hash of each function's file by the option that names it; imports of that file are not followed."""
    callers = {f"rewards.{label}": reward.user_code() for label, reward in config.rewards.items()}
    if isinstance(config, LanguageConfig) and config.environment is not None:
        callers["environment"] = config.environment.user_code()
    found = {f"{caller} ({path})": code_of(path) for caller, paths in callers.items() for path in paths}
    return {who: hashlib.sha256(code).hexdigest()[:16] for who, code in found.items() if code is not None}
