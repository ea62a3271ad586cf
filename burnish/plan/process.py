"""A forecast in a process of its own: its modes, its memory and its time are not those of the run that asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from burnish.config import RunConfig, dump, load
from burnish.config.batches import smallest, with_sizes
from burnish.plan.advice import Chosen, Tried, choose, remedies
from burnish.plan.forecast import Forecast, forecast
from burnish.utils.errors import UserError
from burnish.utils.supervisor import ChildDied, Server
from burnish.utils.terminal import cut

# it computes on a CPU, beside whoever reads data
ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
    "PYTHONWARNINGS": "ignore",
}  # fmt: skip
LONGEST = 1800.0  # seconds after which a forecast is given up
LAST = 180.0  # seconds more for the option that is being tried when time is up
CHOOSE, REMEDY = "choose", "remedy"  # what the process is asked for once it has forecast the run
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
        self._first: Future[Any] = self._pool.submit(self._ask)

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._server.close()
        self._pool.shutdown()
        self._folder.cleanup()

    @property
    def is_ready(self) -> bool:
        """Whether the forecast is there."""
        return self._first.done()

    def choose(self, memory: int, seconds: float) -> Chosen:
        """The forecast of the run with the largest batches for so many bytes of a GPU, waited for.

        Raises:
            NoForecast: it failed, or takes longer.
        """
        self._result(self._first, seconds)
        found: Chosen = self._result(self._pool.submit(self._ask, CHOOSE, memory), seconds)
        return found

    def remedies(self, memory: int, seconds: float) -> Sequence[Tried]:
        """Options that make the run smaller, as far as they were tried in this time; see ``advice.remedies``.

        Raises:
            NoForecast: trying them failed, or takes much longer.
        """
        found: list[Tried] = self._result(self._pool.submit(self._ask, REMEDY, memory, seconds), seconds + LAST)
        return found

    def _ask(self, *arguments: Any) -> Any:
        self._server.load(LONGEST, "it did not start")
        return self._server.call(LONGEST, f"it took longer than {LONGEST:g} s", *arguments)

    def _result(self, asked: Future[Any], seconds: float) -> Any:
        try:
            found = asked.result(seconds)
        except TimeoutError:
            raise NoForecast(f"it takes longer than {seconds:g} s") from None
        except ChildDied as error:
            raise NoForecast(f"its process ended: {error}") from error
        if isinstance(found, str):
            raise NoForecast(found)
        return found


def _foreteller(file: str) -> Callable[..., Any]:
    """In the process: what answers with a forecast, batches or options that were tried, or with why there is none."""
    least: list[Forecast] = []

    def read(more: Sequence[str]) -> RunConfig:
        return load(file, more)

    def tried(memory: int, seconds: float) -> list[Tried]:
        found, begun = [], time.monotonic()
        for one in remedies(read, least[0], memory):
            found.append(one)
            if time.monotonic() - begun > seconds:
                break
        return found

    def answer(what: str = "", memory: int = 0, seconds: float = 0.0) -> Any:
        try:
            if what == CHOOSE:
                return choose(read(()), least[0], memory)
            if what == REMEDY:
                return tried(memory, seconds)
            config = read(())
            least.append(forecast(with_sizes(config, smallest(config))))
            return None
        except Exception as error:  # a model that no forecast knows may fail in any way
            kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
            return cut(kind + " ".join(str(error).split()), SHOWN)

    return answer
