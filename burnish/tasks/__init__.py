"""From a configuration to everything that a run is made of."""

from burnish.config import RunConfig
from burnish.config.tasks import task_named
from burnish.tasks.assembly import Assembly
from burnish.training.ranks import SINGLE_RANK, Ranks

__all__ = ["Assembly", "assemble"]


def assemble(config: RunConfig, ranks: Ranks = SINGLE_RANK) -> Assembly:
    """The assembly of a configuration's task, on one of several ranks or alone."""
    assembly: Assembly = task_named(config.task).assembly(config, ranks)
    return assembly
