"""Processes beside this one that read what prompts show, ahead of its use: they decode files and process pixels.

They have the model's tokenizer and processor, and its network without weights, so that what they return is what would
be made here, to the bit. They are fresh interpreters, which know nothing of this one's threads or GPU, and end with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnish.types.completion import Encoded, Features
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.supervisor import ChildDied, LoadFailed, Server

if TYPE_CHECKING:
    from burnish.config.language import LanguageConfig

STARTING, READING = 300.0, 600.0  # seconds that a process may take to start, and to read what a prompt shows
TRIES = 2  # processes that may die of the same prompt
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
FEWEST = 2  # prompts that are handed over together: one is read here in the time that its way would take

Array = tuple[np.ndarray, str, tuple[int, ...]]  # bytes, and precision and shape of the tensor that they are


@dataclass(eq=False)
class Reading:
    """A prompt whose media are being read, or are to be."""

    prompt: Prompt
    call: int | None  # of ``ahead`` that asked for it last; None: it is waited for
    future: Future[Encoded] = field(default_factory=Future)
    bytes: int = 0  # of what was read


class Readers:
    """Some processes, one thread to each, and the prompts that wait for them: those first that are needed now."""

    def __init__(self, config: LanguageConfig, tools: Sequence[dict[str, Any]], *, most: int) -> None:
        """Nothing is started before there is something to read.

        Args:
            config: of the run; data.workers is the number of processes.
            tools: that prompts tell of.
            most: bytes of what was read ahead from which on nothing further is.
        """
        self.config, self.tools, self.most = config, list(tools), most
        self._changed = threading.Condition()
        self._known: dict[str, Reading] = {}  # by the uid of the prompt
        self._wanted: deque[Reading] = deque()
        self._later: deque[Reading] = deque()
        self._held, self._calls, self._idle = 0, 0, 0
        self._threads: list[threading.Thread] = []
        self._processes: dict[int, Server] = {}
        self._closed = False

    def want(self, prompts: Sequence[Prompt]) -> None:
        """Read what these show now; ``result`` is asked for each of them next."""
        with self._changed:
            new = [prompt for prompt in prompts if prompt.uid not in self._known]
            for prompt in new if len(new) >= FEWEST else ():
                self._put(Reading(prompt, None), self._wanted)
            for reading in [self._known[prompt.uid] for prompt in prompts if prompt.uid in self._known]:
                if reading in self._later:
                    self._later.remove(reading)
                    self._wanted.append(reading)
                reading.call = None
            self._changed.notify_all()

    def ahead(self, prompts: Sequence[Prompt]) -> None:
        """Read what these show when nothing else is to be read; what nobody took of the call before is dropped."""
        with self._changed:
            self._calls += 1
            for prompt in prompts:
                if prompt.uid in self._known:
                    reading = self._known[prompt.uid]
                    reading.call = reading.call and self._calls
                elif prompt.media:
                    self._put(Reading(prompt, self._calls), self._later)
            for reading in [one for one in self._known.values() if one.call and one.call < self._calls - 1]:
                self._drop(reading)
            self._changed.notify_all()

    def reads(self, prompt: Prompt) -> bool:
        """Whether ``result`` can be asked for it."""
        return prompt.uid in self._known

    def result(self, prompt: Prompt) -> Encoded:
        """What a process made of a prompt, once.

        Raises:
            UserError: it can't be read, or processes die of it or take too long.
        """
        reading = self._known[prompt.uid]
        try:
            return reading.future.result()
        finally:
            with self._changed:
                self._drop(reading)
                self._changed.notify_all()

    def close(self) -> None:
        """End the processes."""
        with self._changed:
            self._closed = True
            for process in self._processes.values():
                process.kill()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _put(self, reading: Reading, queue: deque[Reading]) -> None:
        self._known[reading.prompt.uid] = reading
        queue.append(reading)
        if not self._idle and len(self._threads) < self.config.data.workers:
            number = len(self._threads)
            self._threads.append(threading.Thread(target=self._serve, args=(number,), name=f"reader-{number}"))
            self._threads[-1].daemon = True
            self._threads[-1].start()

    def _drop(self, reading: Reading) -> None:
        self._known.pop(reading.prompt.uid, None)
        self._held -= reading.bytes
        reading.bytes = 0
        if reading in self._later:
            self._later.remove(reading)

    def _serve(self, number: int) -> None:
        """Own one process: ask it prompt after prompt."""
        while (reading := self._next()) is not None:
            try:
                found = self._read(number, reading.prompt)
            except Exception as error:
                reading.future.set_exception(error)
                continue
            with self._changed:
                if reading.call is not None and self._known.get(reading.prompt.uid) is reading:
                    reading.bytes = sum(tensor.nbytes for tensor in found.features[0].tensors.values())
                    self._held += reading.bytes
            reading.future.set_result(found)
        self._discard(number)

    def _next(self) -> Reading | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._closed or self._wanted or (self._later and self._held < self.most))
            self._idle -= 1
            if self._closed:
                return None
            return self._wanted.popleft() if self._wanted else self._later.popleft()

    def _read(self, number: int, prompt: Prompt) -> Encoded:
        how = ""
        for _ in range(TRIES):
            try:
                said, found = self._process(number).call(READING, "", prompt)
            except ChildDied as error:
                self._discard(number)
                how = str(error)
            except TimeoutError:
                self._discard(number)
                raise UserError(
                    f"{prompt.name} shows what process {number + 1} of data.workers={self.config.data.workers} has not "
                    f"read in {READING:g} s; put it right or take it out"
                ) from None
            else:
                if said:
                    raise UserError(said)
                return _encoded(found)
        raise UserError(
            f"{prompt.name} shows what {TRIES} processes (data.workers={self.config.data.workers}) died of reading "
            f"({how}); take it out, or look at it with data.workers=0, and at the machine's free memory"
        )

    def _process(self, number: int) -> Server:
        with self._changed:
            process = self._processes.get(number)
            if process is None and not self._closed:
                process = self._processes[number] = Server(_load, (self.config, self.tools), ENVIRONMENT)
        if process is None:
            raise UserError("the run is over")
        try:
            process.load(STARTING, "")
        except (LoadFailed, TimeoutError) as error:
            self._discard(number)
            raise UserError(
                f"data.workers is {self.config.data.workers}, but a process that reads pictures could not start: "
                f"{str(error) or f'not within {STARTING:g} s'}; set data.workers=0"
            ) from None
        return process

    def _discard(self, number: int) -> None:
        with self._changed:
            process = self._processes.pop(number, None)
        if process is not None:
            process.close()


def _load(argument: tuple[LanguageConfig, Sequence[dict[str, Any]]]) -> Callable[[Prompt], tuple[str, Any]]:
    """In a process: the function that reads what a prompt shows, or says what is wrong with it."""
    from burnish.models.language.loading import load_outline
    from burnish.tasks.language.engine import Encoder

    config, tools = argument
    torch.set_num_threads(1)
    encode = Encoder(load_outline(config.model), tools, cached=0)

    def read(prompt: Prompt) -> tuple[str, Any]:
        try:
            return "", _plain(encode([prompt]).table)
        except UserError as error:
            return str(error), None

    return read


def _plain(encoded: Encoded) -> tuple[Any, ...]:
    """An encoded prompt for the way between processes."""
    features = encoded.features[0]
    groups = (features.tensors, features.kinds, {"ids": encoded.ids[0], "positions": encoded.positions[0]})
    about = features.axes, features.sizes
    return (about, *({name: _array(one) for name, one in group.items()} for group in groups))


def _encoded(plain: tuple[Any, ...]) -> Encoded:
    """The opposite."""
    (axes, sizes), *groups = plain
    tensors, kinds, own = ({name: _tensor(one) for name, one in group.items()} for group in groups)
    return Encoded(ids=[own["ids"]], positions=[own["positions"]], features=[Features(tensors, axes, kinds, sizes)])


def _array(tensor: Tensor) -> Array:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy(), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def _tensor(array: Array) -> Tensor:
    data, dtype, shape = array
    return torch.from_numpy(data).view(getattr(torch, dtype)).view(shape)
