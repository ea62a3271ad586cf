"""Whether a run fits the GPUs that it gets: said in one line before weights are loaded, and refused where it can't.

The forecast is made in a process of its own: its modes, its memory and its time are not those of the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from burnish.config import RunConfig, dump, load
from burnish.config.batches import smallest, unforeseen, with_sizes, written
from burnish.controller import Controller
from burnish.plan.counter import shown
from burnish.utils import terminal
from burnish.utils.errors import UserError
from burnish.utils.supervisor import ChildDied, LoadFailed, Server

if TYPE_CHECKING:
    from burnish.plan.advice import Chosen, Tried
    from burnish.plan.forecast import Forecast, PoolForecast

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
        self._asked = Foreteller(config) if self._wanted and torch.cuda.is_available() else None

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
        asked = self._asked = self._asked or Foreteller(self.config)  # only now, where the cluster alone has GPUs
        if not asked.is_ready:
            terminal.say("Forecasting the memory that this run needs (forecast=off leaves that out)")
        try:
            chosen: Chosen = asked.ask(PATIENCE, min(memory.values()))
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

    def _refuse(self, asked: Foreteller, pool: PoolForecast, memory: int) -> None:
        why = f"by forecast {pool.why(memory)}, and its GPUs have {shown(memory)}"
        if self.config.forecast == "warn":
            terminal.say(f"Warning: {why}: expect it to run out of memory (burnish plan tries what would help)")
            return
        terminal.say("Trying options that need less memory")
        tried: Tried | None = None
        with suppress(NoForecast):
            tried = asked.ask(ADVICE + LAST, memory, ADVICE)
        way_out = (
            f"it fits with {' '.join(tried.options)} ({tried.cost}; {shown(tried.needs)})" if tried and tried.fits
            else f"none of the options that burnish plan tries makes it fit: {LARGER}"
        )  # fmt: skip
        raise UserError(f"{why}; {way_out}; or set force=true to train all the same")


def conclusion(found: Forecast, memory: Mapping[str, int]) -> str:
    """What a run needs of the GPUs that it has, in one line."""
    each = []
    for pool in [pool for pool in found.pools if pool.name in memory]:
        there, needs = memory[pool.name], pool.needs_of(memory[pool.name])
        tight = ", which is tight" if pool.can_fit(there) and needs > there else ""
        each.append(f"{pool.name} needs {shown(needs)} of {shown(there)} in {pool.highest[0]!r}{tight}")
    more = f"; not counted: {'; '.join(found.left_out)}" if found.left_out else ""
    return f"Memory forecast for each GPU: {'; '.join(each)}{more}"


# it computes on a CPU, beside whoever reads data
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONWARNINGS": "ignore",
}  # fmt: skip
LONGEST = 1800.0  # seconds after which a forecast is given up
LATE = f"it took longer than {LONGEST:g} s"
LAST = 180.0  # seconds more for the option that is being tried when time is up
SHOWN = 300  # characters of an error


class NoForecast(Exception):
    """There is none; the message says why."""


class Foreteller:
    """Starts at once, and forecasts while its owner does something else."""

    def __init__(self, config: RunConfig) -> None:
        """Args: ``config`` is written down, and read by the process as from a file of the user's."""
        self._folder = TemporaryDirectory(prefix="burnish-forecast-", ignore_cleanup_errors=True)
        file = Path(self._folder.name) / "config.yaml"
        file.write_text(dump(config), encoding="utf-8")
        # what the process leaves behind when it is killed goes with the folder
        self._server = Server(_foreteller, str(file), ENVIRONMENT | {"TMPDIR": self._folder.name})
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="forecast")
        self._loaded = self._pool.submit(self._server.load, LONGEST, LATE)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._server.close()
        self._pool.shutdown()
        self._folder.cleanup()

    @property
    def is_ready(self) -> bool:
        """Whether the forecast is there."""
        return self._loaded.done()

    def ask(self, seconds: float, *question: Any) -> Any:
        """What the process answers; see ``_foreteller``.

        Raises:
            NoForecast: it failed, or takes longer.
        """
        late = f"it takes longer than {seconds:g} s"
        try:
            self._loaded.result(seconds)
            answer = self._server.call(seconds, late, *question)
        except TimeoutError:
            raise NoForecast(late) from None
        except (LoadFailed, ChildDied) as error:
            raise NoForecast(str(error)) from error
        if isinstance(answer, str):
            raise NoForecast(answer)
        return answer


def _foreteller(file: str) -> Callable[..., Any]:
    """In the process: forecasts the run, and returns what answers about a GPU's memory.

    It answers with the largest batches for so many bytes, or then, given seconds, with options that make the run
    smaller, or the last that were tried in that time; with a text where it can't.

    Raises:
        RuntimeError: there is no forecast.
    """
    # a run that asks for none imports none of this
    from burnish.plan.advice import candidates, choose, remedies
    from burnish.plan.forecast import Forecasts

    config = load(file)
    try:
        forecasts = Forecasts(config)
        forecasts(candidates(config)[0])
    except Exception as error:
        raise RuntimeError(why(error)) from None
    chosen = cache(partial(choose, forecasts))

    def answer(memory: int, seconds: float | None = None) -> Any:
        try:
            if seconds is None:
                return chosen(memory)
            forecasts.close()  # its ranks; others are tried
            late = time.monotonic() + seconds
            tried = remedies(lambda more: load(file, more), chosen(memory).forecast, memory)
            return next((one for one in tried if one.fits or time.monotonic() > late), None)
        except Exception as error:
            return why(error)

    return answer


def why(error: Exception) -> str:
    """A model that no forecast knows may fail in any way."""
    kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return terminal.cut(kind + " ".join(str(error).split()), SHOWN)
