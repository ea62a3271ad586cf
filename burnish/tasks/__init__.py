"""From a configuration to everything that a run is made of."""

from burnish.config import RunConfig
from burnish.tasks.assembly import Assembly
from burnish.tasks.flow.assembly import FlowAssembly
from burnish.tasks.language.assembly import LanguageAssembly
from burnish.training.ranks import SINGLE_RANK, Ranks

__all__ = ["Assembly", "FlowAssembly", "LanguageAssembly", "assemble"]

ASSEMBLIES: dict[str, type[Assembly]] = {"text-to-image": FlowAssembly, "image-text-to-text": LanguageAssembly}


def assemble(config: RunConfig, ranks: Ranks = SINGLE_RANK) -> Assembly:
    """The assembly of a configuration's task, on one of several ranks or alone."""
    return ASSEMBLIES[config.task](config, ranks)
