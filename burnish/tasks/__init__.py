"""From a configuration to everything that a run is made of."""

from burnish.config import RunConfig
from burnish.tasks.assembly import Session
from burnish.tasks.flow.assembly import FlowSession
from burnish.tasks.language.assembly import LanguageSession
from burnish.training.ranks import ALONE, Ranks

__all__ = ["FlowSession", "LanguageSession", "Session", "open_session"]

SESSIONS: dict[str, type[Session]] = {"text-to-image": FlowSession, "image-text-to-text": LanguageSession}


def open_session(config: RunConfig, ranks: Ranks = ALONE) -> Session:
    """The session of a configuration's task, on one of several ranks or alone."""
    return SESSIONS[config.task](config, ranks)
