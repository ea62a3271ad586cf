"""Runs that are given in passes over their data: the number of updates, counted before anything else is loaded."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from burnish.config import RunConfig
from burnish.options import MOST
from burnish.tasks import assemble
from burnish.utils.errors import UserError

log = logging.getLogger(__name__)


def with_steps(config: RunConfig) -> RunConfig:
    """The configuration with the ``steps`` that ``data.epochs`` makes of the training records; else as it is.

    Raises:
        UserError: the records can't be read, or other options don't fit that number of updates.
    """
    epochs = config.data.epochs
    if epochs is None:
        return config
    count = len(assemble(config).all_records)
    steps = max(1, math.ceil(epochs * count / config.records))
    if steps > MOST:
        raise UserError(
            f"data.epochs is {epochs:g}, which makes {steps} updates of {count} records; the most are {MOST}: lower it"
        )
    counted = replace(config, steps=steps)
    log.info("%g epochs of %d records, %d to an update: %d updates", epochs, count, config.records, counted.steps)
    counted.check()
    return counted
