"""Processes beside this one that read what prompts show, ahead of its use: they decode files and process pixels.

They have the model's tokenizer and processor, and its network without weights, so that what they return is what would
be made here, to the bit. They are fresh interpreters, which know nothing of this one's threads or GPU, and end with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnish.language.model.base import LanguageModel, decoded
from burnish.training.ranks import Ranks, own_rows
from burnish.types.batch import Gathered
from burnish.types.columns import LazyTensors, Made
from burnish.types.completion import Encoded, Features
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import LruCache
from burnish.utils.supervisor import ChildDied, LoadFailed, Server

if TYPE_CHECKING:
    from burnish.config.language import LanguageConfig

CACHED = 4 << 30  # bytes of tokens and pixels of prompts that are kept
OVERHEAD = 1024  # of a prompt's tensors, beside their numbers

STARTING, READING = 300.0, 600.0  # seconds that a process may take to start, and to read what a prompt shows
TRIES = 2  # processes that may die of the same prompt
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}
FEWEST = 2  # prompts that are handed over together: one is read here in the time that its way would take

Array = tuple[np.ndarray, str, tuple[int, ...]]  # bytes, and precision and shape of the tensor that they are


class Encoder:
    """Prompts as tokens and pixels; the processor sees each of them once, however many responses it gets."""

    def __init__(
        self, model: LanguageModel, tools: Sequence[dict[str, Any]] = (), *, bounded: bool = True, cached: int = CACHED
    ) -> None:
        """Make one for a model.

        Args:
            model: whose processor reads them.
            tools: JSON schemas of functions that the prompts tell of.
            bounded: refuse prompts that leave the model no position for a response.
            cached: bytes of prompts that are kept, at most.
        """
        self.model, self.tools, self.bounded = model, tools, bounded
        self.readers: Readers | None = None  # processes that read what prompts show, in place of this one
        self._encoded: LruCache[Encoded] = LruCache(cached, _bytes_of)

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """Rows by reference to a table of the distinct prompts."""
        unique = {prompt.uid: prompt for prompt in prompts}
        if self.readers is not None:
            self.readers.want(self.unread(prompts))
        table = Encoded.cat([self._encoded.get(uid, partial(self._encode, one)) for uid, one in unique.items()])
        row = {uid: i for i, uid in enumerate(unique)}
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long))

    def unread(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those prompts, each once, whose media are to be read for the next encoding."""
        unique = {prompt.uid: prompt for prompt in prompts if prompt.media}
        return [prompt for uid, prompt in unique.items() if self._encoded.find(uid) is None]

    def _encode(self, prompt: Prompt) -> Encoded:
        if self.readers is not None and self.readers.reads(prompt):
            return self.readers.result(prompt)
        try:
            shown = decoded(prompt, self.model.audio_rate)
            encoded = self.model.encode(prompt.chat(), shown, prompt.told(self.tools))
        except (
            OSError,
            ImportError,
            ValueError,
        ) as error:  # of decoders and processors, where a file broke in the course of a run
            if isinstance(error, UserError) and not prompt.media:  # it names the model, or what the template misses
                raise
            told = f"{prompt.name}{' shows what' if prompt.media else ''} can't be read: {error}"
            raise UserError(f"{told}; put it right or take it out") from error
        last = int(encoded.ids[0].max()) if len(encoded.ids[0]) else 0
        if last >= self.model.readable_ids:
            raise UserError(
                f"{prompt.name} has token {last}, but the model knows only {self.model.readable_ids}: its tokenizer is "
                "another model's; fetch the model again"
            )
        if self.bounded and encoded.lengths[0] >= self.model.max_positions:
            raise UserError(
                f"{prompt.name} has {encoded.lengths[0]} tokens with what it shows and plays, but the model has only "
                f"{self.model.max_positions} ({self.model.position_limit}); shorten it, or set data.max_prompt_length "
                "and data.overlong=filter"
            )
        return replace(encoded, features=[one.in_precision(self.model.compute) for one in encoded.features])


def prompt_lengths(encode: Encoder, prompts: Sequence[Prompt], ranks: Ranks) -> list[int]:
    """Tokens of prompts with what they show and play, shared out over ranks.

    Pictures are not decoded where a processor tells their tokens from their size; of others nothing is kept.
    """
    own = [_length(encode, prompt) for prompt in prompts[ranks.rank :: ranks.size]]
    found = ranks.gather(own)
    return [found[i % ranks.size][i // ranks.size] for i in range(len(prompts))]


def _length(encode: Encoder, prompt: Prompt) -> int:
    found = length_unread(encode.model, prompt, encode.tools)
    return encode([prompt]).table.lengths[0] if found is None else found


def length_unread(model: LanguageModel, prompt: Prompt, tools: Sequence[dict[str, Any]]) -> int | None:
    """Tokens of a prompt with its pictures, of which only the sizes are read; None where that doesn't tell."""
    if prompt.videos or prompt.audios:
        return None
    with suppress(OSError, ValueError):  # which are told of, with the prompt's name, where it is encoded
        each = [model.picture_tokens(*picture.size()) for picture in prompt.images]
        if None not in each:
            length = model.count_tokens(prompt.chat(), prompt.told(tools))
            return length - len(each) + sum(tokens or 0 for tokens in each)
    return None


def _bytes_of(encoded: Encoded) -> int:
    tensors = [*encoded.ids, *encoded.positions]
    for features in encoded.features:
        tensors += [*features.tensors.values(), *features.kinds.values()]
    return OVERHEAD + sum(tensor.nbytes for tensor in tensors)


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
    from burnish.language.model.loading import load_outline

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


Encode = Callable[[Sequence[Prompt]], Gathered[Encoded]]
OVERHEAD = 1024  # bytes of an outline, beside its tokens


@dataclass(frozen=True)
class Outline:
    """A prompt without its pixels, which all ranks know."""

    ids: Tensor  # [L] long
    positions: Tensor  # [A, L] long
    shapes: dict[str, tuple[tuple[int, ...], torch.dtype]]  # of what it shows, by name
    features: Features  # without its tensors

    @classmethod
    def of(cls, encoded: Encoded) -> Outline:
        """That of one prompt."""
        features = encoded.features[0]
        shapes = {name: (tuple(one.shape), one.dtype) for name, one in features.tensors.items()}
        return cls(encoded.ids[0], encoded.positions[0], shapes, replace(features, tensors={}))

    @property
    def bytes(self) -> int:
        """In memory."""
        return OVERHEAD + sum(one.nbytes for one in (self.ids, self.positions, *self.features.kinds.values()))


class SharedPrompts:
    """Encodes prompts for all ranks. What a prompt shows is processed by one of them for its length, and by those that
    use its row, where they use it; pixels never travel."""

    def __init__(self, encode: Encode, ranks: Ranks, *, cached: int) -> None:
        """Take over who encodes.

        Args:
            encode: in this process; it keeps what was used last.
            ranks: all of which encode the same prompts together.
            cached: bytes of tokens of prompts that are kept.
        """
        self.encode, self.ranks = encode, ranks
        self._known: LruCache[Outline] = LruCache(cached, lambda outline: outline.bytes)

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """As the encoder does, with what is shown in place of pixels.

        Raises:
            UserError: one of them can't be read, on whichever rank.
        """
        unique = {prompt.uid: prompt for prompt in prompts}
        outlines = self._outlines({uid: prompt for uid, prompt in unique.items() if prompt.media})
        table = Encoded.cat([
            self._lazily(prompt, outlines[uid]) if uid in outlines else self.encode([prompt]).rows()
            for uid, prompt in unique.items()
        ])  # fmt: skip
        row = {uid: i for i, uid in enumerate(unique)}
        return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long))

    def _outlines(self, prompts: dict[str, Prompt]) -> dict[str, Outline]:
        known = {uid: found for uid in prompts if (found := self._known.find(uid)) is not None}
        new = [uid for uid in prompts if uid not in known]
        if not new:
            return known
        mine: list[Outline] | str
        try:
            own = [prompts[uid] for uid in new[own_rows(self.ranks, len(new))]]
            mine = self._looked_at(own) if own else []
        except UserError as error:
            mine = str(error)  # all ranks stop, and none waits for another
        gathered = self.ranks.gather(mine)
        if failed := next((one for one in gathered if isinstance(one, str)), None):
            raise UserError(failed)
        every = [outline for several in gathered if not isinstance(several, str) for outline in several]
        for uid, outline in zip(new, every, strict=True):
            known[uid] = self._known.get(uid, partial(_given, outline))
        return known

    def _looked_at(self, prompts: Sequence[Prompt]) -> list[Outline]:
        encoded = self.encode(prompts).rows()  # together: other processes may read them at once
        return [Outline.of(encoded.select([row])) for row in range(len(encoded))]

    def _lazily(self, prompt: Prompt, outline: Outline) -> Encoded:
        def rows_of(name: str, rows: Tensor) -> Tensor:
            return self.encode([prompt]).table.features[0].tensors[name].index_select(0, rows)

        if any(not shape for shape, _ in outline.shapes.values()):  # single numbers have no rows
            return self.encode([prompt]).rows()
        sources = {name: Made(*about, partial(rows_of, name)) for name, about in outline.shapes.items()}
        features = replace(outline.features, tensors=LazyTensors(sources))
        return Encoded(ids=[outline.ids], positions=[outline.positions], features=[features])


def _given(outline: Outline) -> Outline:
    return outline
