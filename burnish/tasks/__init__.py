"""From a configuration to everything that a run is made of."""

import torch

from burnish.config import RunConfig
from burnish.config.batches import unforeseen, with_sizes
from burnish.config.tasks import task_named
from burnish.rewards.scoring import Scorer
from burnish.tasks.assembly import Assembly
from burnish.training.ranks import SINGLE_RANK, Ranks

__all__ = ["Assembly", "assemble"]


def assemble(
    config: RunConfig,
    ranks: Ranks = SINGLE_RANK,
    *,
    trains: bool = False,
    only_samples: bool = False,
    scorer: Scorer | None = None,
) -> Assembly:
    """The assembly of a configuration's task, on one of several ranks or alone.

    Args:
        config: of the run.
        ranks: those that hold the trained networks together, each with an assembly of its own.
        trains: weights are learned, not only read.
        only_samples: nothing is trained or evaluated with it, so that it needs no network but those that sample.
        scorer: has samples scored; None scores in processes of this one.
    """
    config = with_sizes(config, unforeseen(config, on_gpu=config.model.device != "cpu" and torch.cuda.is_available()))
    assembly: Assembly = task_named(config.task).assembly(
        config, ranks, trains=trains, only_samples=only_samples, scorer=scorer
    )
    return assembly
