"""Whether a run fits the GPUs that it gets: said in one line before weights are loaded, and refused where it can't."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from burnish.config import RunConfig
from burnish.config.batches import smallest, unforeseen, with_sizes, written
from burnish.controller import Controller
from burnish.utils import terminal
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.plan.forecast import Forecast, PoolForecast
    from burnish.plan.process import Foreteller

PATIENCE = 300.0  # seconds that a run waits for its forecast once its data is read
ADVICE = 120.0  # seconds in which options are tried that would make it fit
SMALL = "No forecast says how much memory this run needs, so its batches are small"
LARGER = "use more GPUs (gpus=8), larger ones, smaller samples, or a smaller model"


class Fit:
    """The forecast of a run that begins on GPUs, made beside the reading of its data."""

    def __init__(self, config: RunConfig, *, resumes: bool) -> None:
        """Start forecasting where there is a GPU here.

        Args:
            config: of the run.
            resumes: it goes on from a checkpoint, and so has shown whether it fits.
        """
        self.config = config
        self._wanted = config.forecast != "off" and config.model.device != "cpu" and not resumes
        self._asked: Foreteller | None = None
        if self._wanted and torch.cuda.is_available():
            self._ask()

    def close(self) -> None:
        """End the process that forecasts."""
        if self._asked is not None:
            self._asked.close()
            self._asked = None

    def settle(self, controller: Controller) -> RunConfig:
        """The configuration with a size for every batch that is auto; says what the run needs of its GPUs.

        Raises:
            UserError: it can't fit, and forecast is refuse.
        """
        config = self.config
        asks = self._wanted or (smallest(config) and config.model.device != "cpu")
        memory = controller.gpu_memory() if asks else {}
        sizes = unforeseen(config, on_gpu=bool(memory))
        if memory and self._wanted:
            sizes = self._forecast(memory) or sizes
        elif memory and sizes:
            terminal.say(f"{SMALL}: {' '.join(written(sizes))}")
        return with_sizes(config, sizes)

    def _forecast(self, memory: Mapping[str, int]) -> dict[str, int]:
        """Sizes of batches for the GPUs of each pool; none where there is no forecast."""
        from burnish.plan.process import NoForecast

        asked = self._asked or self._ask()  # only now, where the cluster alone has GPUs
        if not asked.is_ready:
            terminal.say("Forecasting the memory that this run needs (forecast=off leaves that out)")
        try:
            chosen = asked.choose(min(memory.values()), PATIENCE)
        except NoForecast as error:
            terminal.say(f"No memory forecast, and the run goes on without: {error}")
            return {}
        terminal.say(conclusion(chosen.forecast, memory))
        pools = [pool for pool in chosen.forecast.pools if pool.name in memory]
        if large := [pool for pool in pools if not pool.can_fit(memory[pool.name])]:
            self._refuse(asked, large[0], memory[large[0].name])
        self.close()
        if chosen.sizes:
            terminal.say(f"Chosen where auto is set: {' '.join(written(chosen.sizes))}")
        return dict(chosen.sizes)

    def _ask(self) -> Foreteller:
        # a run on a CPU imports none of this
        from burnish.plan.process import Foreteller

        self._asked = Foreteller(self.config)
        return self._asked

    def _refuse(self, asked: Foreteller, pool: PoolForecast, memory: int) -> None:
        from burnish.plan.counter import shown
        from burnish.plan.process import NoForecast

        why = f"by forecast {pool.why(memory)}, and its GPUs have {shown(memory)}"
        if self.config.forecast == "warn":
            terminal.say(f"Warning: {why}: expect it to run out of memory (burnish plan tries what would help)")
            return
        terminal.say("Trying options that need less memory")
        fits = None
        with suppress(NoForecast):
            fits = next((tried for tried in asked.remedies(memory, ADVICE) if tried.fits), None)
        way_out = (
            f"it fits with {' '.join(fits.options)} ({fits.cost}; {shown(fits.needs)})" if fits is not None
            else f"none of the options that burnish plan tries makes it fit: {LARGER}"
        )  # fmt: skip
        raise UserError(f"{why}; {way_out}; or set force=true to train all the same")


def conclusion(found: Forecast, memory: Mapping[str, int]) -> str:
    """What a run needs of the GPUs that it has, in one line."""
    from burnish.plan.counter import shown

    each = []
    for pool in [pool for pool in found.pools if pool.name in memory]:
        there, needs = memory[pool.name], pool.needs_of(memory[pool.name])
        tight = ", which is tight" if pool.can_fit(there) and needs > there else ""
        each.append(f"{pool.name} needs {shown(needs)} of {shown(there)} in {pool.highest[0]!r}{tight}")
    more = f"; not counted: {'; '.join(found.left_out)}" if found.left_out else ""
    return f"Memory forecast for each GPU: {'; '.join(each)}{more}"
