"""Batches by reference: stored once where they were made, read where rows are needed, and plain for checkpoints."""

from __future__ import annotations

import dataclasses
import io
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self, TypeVar

import numpy as np
import ray
import torch
from torch import Tensor

from burnish.metrics import Span
from burnish.rollout.saved import BATCHES, made, plain
from burnish.rollout.sources import RolloutRequest, join
from burnish.tasks import Assembly
from burnish.types.batch import Batch
from burnish.types.columns import Column, Here, LazyTensors, Pointers, Source
from burnish.types.completion import Features, Lengths
from burnish.types.media import Media
from burnish.types.prompt import Prompt
from burnish.types.rollout import Denoising, Rollouts
from burnish.utils.media import Unread

SMALL = 4096  # bytes; shorter tensors travel inside the head
SMALL_ROW = 64  # bytes; shorter rows are numbers, which all ranks read
T = TypeVar("T")


class PromptNumbers:
    """Prompts of the training data by their place in it, which every process reads alike.

    A prompt whose media are files is as short as its number would be, and travels as it is; so does one that came from
    a checkpoint.
    """

    def __init__(self, prompts: Callable[[], Sequence[Prompt]]) -> None:
        """Args: ``prompts`` reads the training data, where a process has not done so yet."""
        self._read = prompts

    @cached_property
    def _prompts(self) -> Sequence[Prompt]:
        return self._read()

    @cached_property
    def _places(self) -> dict[int, int]:
        return {id(prompt): place for place, prompt in enumerate(self._prompts)}

    def numbered(self, batch: T) -> T:
        """The same with numbers in place of prompts."""
        return self._with(
            batch, lambda prompts: [self._places.get(id(one), one) if _embeds(one) else one for one in prompts]
        )

    def named(self, batch: T) -> T:
        """The opposite."""
        return self._with(
            batch, lambda prompts: [self._prompts[one] if isinstance(one, int) else one for one in prompts]
        )

    def _with(self, batch: T, change: Callable[[Sequence[Any]], list[Any]]) -> T:
        given: Any = batch
        changed: T = replace(given, prompts=change(given.prompts))
        if isinstance(changed, RolloutRequest):
            changed.ahead = change(changed.ahead)
        if isinstance(changed, Rollouts):
            changed.put_aside = [self._with(one, change) for one in changed.put_aside]
        return changed


def _embeds(prompt: Prompt) -> bool:
    """Whether images, videos or sounds are in the prompt itself."""
    media = (*prompt.media, *(one for _, one in prompt.inputs))
    return any(one.data is not None or one.frames for one in media)


@dataclass(frozen=True)
class Packed:
    """A batch as Ray's object store keeps it: arrays are read where they lie there, which torch's tensors are not."""

    head: np.ndarray  # uint8: everything but the long tensors
    arrays: list[np.ndarray]  # uint8, their bytes
    rows: int

    def unpack(self) -> Any:
        """The batch, bit for bit, on the CPU, with columns in place of what is heavy: states, embeddings and pixels.

        Its tensors are copies. What lies in the store belongs to every process of the machine, and a tensor on top
        of it could be written to, by an in-place operation of whoever learns from it. Of columns, rows are copied
        where they are used.
        """
        return pickle.loads(self.head.data, buffers=self.arrays)


def pack(batch: Batch) -> Packed:
    """Take a batch apart; tensors on a GPU come to the CPU. Tables and tensors that it holds twice stay one."""
    arrays: list[np.ndarray] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        arrays.append(np.frombuffer(buffer.raw(), dtype=np.uint8))

    head = io.BytesIO()
    _Pickler(head, keep).dump(with_columns(batch))
    return Packed(np.frombuffer(head.getbuffer(), dtype=np.uint8), arrays, len(batch))


def with_columns(value: Any, done: dict[int, Any] | None = None) -> Any:
    """A record with columns in place of its fields that are heavy, in fields of fields too."""
    done = {} if done is None else done  # a table that it holds twice stays one
    if isinstance(value, Column) or not isinstance(value, Batch):
        return value

    def column(field: dataclasses.Field[Any], own: Any) -> Any:
        heavy = field.metadata.get("heavy") and isinstance(own, Tensor) and own[:1].nbytes > SMALL_ROW
        return Column.of(Here(own)) if heavy else with_columns(own, done)

    if id(value) not in done:
        done[id(value)] = _changed(value, column)
    return done[id(value)]


def _changed(batch: Any, change: Callable[[dataclasses.Field[Any], Any], Any]) -> Any:
    """A batch with what is made of each of its fields; itself where none changes."""
    values = [(field, getattr(batch, field.name)) for field in dataclasses.fields(batch)]
    changed = {field.name: new for field, value in values if (new := change(field, value)) is not value}
    return replace(batch, **changed) if changed else batch


@dataclass(kw_only=True, eq=False)
class Lying(Source):
    """A tensor whose bytes lie in the object store, where whoever uses a row reads it."""

    array: np.ndarray  # uint8 [N, bytes of a row]

    @classmethod
    def of(cls, tensor: Tensor) -> Lying:
        flat = tensor.detach().cpu().contiguous()
        rows = flat.view(len(flat), flat.numel() // max(len(flat), 1))
        array = (rows.view(torch.uint8) if rows.numel() else rows.to(torch.uint8)).numpy()
        return cls(array=array, dtype=flat.dtype, shape=tuple(flat.shape))

    def take(self, rows: Tensor) -> Tensor:
        """Copies of these rows, and of no others."""
        if not self.array.size:
            return torch.empty(len(rows), *self.shape[1:], dtype=self.dtype)
        return torch.from_numpy(self.array[rows.numpy()]).view(self.dtype).view(len(rows), *self.shape[1:])


@dataclass(frozen=True, eq=False)
class Content(Unread):
    """The bytes of an image, a video or a sound inside of a prompt, read by whoever uses that prompt."""

    array: np.ndarray  # uint8

    def read(self) -> bytes:
        return self.array.tobytes()


class _Pickler(pickle.Pickler):
    """Writes tensors as arrays of bytes, each once; the rest as usual."""

    def __init__(self, file: io.BytesIO, keep: Callable[[pickle.PickleBuffer], None]) -> None:
        super().__init__(file, protocol=5, buffer_callback=keep)
        self._lying: dict[int, tuple[Tensor, Lying]] = {}  # by identity, which must not be given twice meanwhile
        self._contents: dict[str, Content] = {}  # of media inside of prompts, by digest

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Here):
            key = id(value.tensor)
            if key not in self._lying:
                self._lying[key] = value.tensor, Lying.of(value.tensor)
            return _itself, (self._lying[key][1],)
        if isinstance(value, Media) and value.data is not None:
            if value.digest not in self._contents:
                self._contents[value.digest] = Content(np.frombuffer(value.read(), dtype=np.uint8))
            return partial(replace, data=self._contents[value.digest]), (replace(value, data=None),)
        if isinstance(value, Content):
            return Content, (value.array,)
        if isinstance(value, Features) and (sources := _sources(value)):
            return Features, (LazyTensors(sources), value.axes, value.kinds, value.sizes)
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        content = flat.tobytes() if flat.nbytes < SMALL else pickle.PickleBuffer(flat)  # type: ignore[arg-type]
        return _tensor, (content, value.dtype, tuple(value.shape))


def _itself(value: T) -> T:
    return value


def _tensor(content: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    tensor = torch.empty(shape, dtype=dtype)
    if tensor.numel():
        tensor.view(-1).view(torch.uint8).numpy()[:] = np.frombuffer(content, dtype=np.uint8)
    return tensor


def _sources(features: Features) -> dict[str, Any]:
    """What is read of media where they are used; nothing of media that have single numbers."""
    if isinstance(features.tensors, LazyTensors):
        return dict(features.tensors.sources)
    each = features.tensors.items()
    return {name: Here(one) for name, one in each} if all(one.ndim for _, one in each) else {}


@dataclass(frozen=True)
class Stored:
    """A batch in the object store. It is freed when nobody refers to it any more."""

    reference: ray.ObjectRef[Any]  # of a Packed
    rows: int

    @classmethod
    def put(cls, batch: Batch) -> Stored:
        """Store a batch. It is lost with the process that stores it: a worker gives a ``Packed`` to keep instead."""
        packed = pack(batch)
        return cls(ray.put(packed), packed.rows)

    def read(self, *, seconds: float) -> Any:
        """The batch, the reader's own.

        Raises:
            ray.exceptions.GetTimeoutError: it does not come in time.
            ray.exceptions.ObjectLostError: the machine that held it, or its owner, is gone.
        """
        return ray.get(self.reference, timeout=seconds).unpack()


@dataclass(kw_only=True)
class StoredRows(Pointers):
    """Rows of stored batches of one type, for whoever never sees what is in them."""

    @classmethod
    def to_all(cls, stored: Stored, **about: Any) -> Self:
        """Every row of a stored batch; ``about`` are further fields."""
        part = torch.zeros(stored.rows, dtype=torch.long)
        return cls(part=part, row=torch.arange(stored.rows), sources=[stored], **about)

    def resolve(self, *, seconds: float) -> Any:
        """What the rows hold, as one batch in their order.

        Args:
            seconds: that each stored batch may take to come.

        Raises:
            ray.exceptions.GetTimeoutError, ray.exceptions.ObjectLostError: see ``Stored.read``.
        """
        assert self.sources, "no stored batch says of which type nothing is"
        pieces, order = [], []
        for number, stored in enumerate(self.sources):
            places = (self.part == number).nonzero().flatten()
            batch, rows = stored.read(seconds=seconds), self.row[places]
            whole = torch.equal(rows, torch.arange(stored.rows))
            pieces.append(batch if whole else batch.select(rows))
            order.append(places)
        joined = type(pieces[0]).cat(pieces)
        places = torch.cat(order)
        in_order = torch.equal(places, torch.arange(len(self)))
        return joined if in_order else joined.select(places.argsort())


@dataclass(kw_only=True)
class StoredResponses(StoredRows):
    """Rows of stored responses, and how long they are."""

    lengths: Lengths


def resolved(batch: T, *, seconds: float) -> T:
    """The same record with what it points to in place of pointers, in fields of fields too."""
    if isinstance(batch, StoredRows):
        return batch.resolve(seconds=seconds)  # type: ignore[no-any-return]
    if not isinstance(batch, Batch):
        return batch
    return _changed(batch, lambda field, value: resolved(value, seconds=seconds))  # type: ignore[no-any-return]


@dataclass(frozen=True, kw_only=True)
class RolloutResult:
    """What the driver gets of rollouts that a worker has made."""

    rollouts: Any  # without their traces
    lengths: Lengths | None
    seconds: float  # that it took
    phases: dict[str, float]  # seconds by name
    spans: list[Span]  # what it did when


def joined(
    parts: Sequence[tuple[RolloutResult | None, ray.ObjectRef[Any]]], numbers: PromptNumbers
) -> tuple[Rollouts, dict[str, float]]:
    """A batch of parts that were made at once, and seconds by phase: of every phase the longest.

    Args:
        parts: results, and references to their traces, each a ``Packed``, to which the batch has pointers; None is
            the result of a worker that had nothing to do.
        numbers: of the prompts.
    """
    found = [(result, trace) for result, trace in parts if result is not None]
    rollouts = [_pointing(one.rollouts, Stored(trace, len(one.rollouts)), one.lengths) for one, trace in found]
    names = {name for one, _ in found for name in one.phases}
    return numbers.named(join(rollouts)), {name: max(one.phases.get(name, 0.0) for one, _ in found) for name in names}


def generate(
    assembly: Assembly, request: RolloutRequest | None, numbers: PromptNumbers
) -> tuple[RolloutResult | None, Packed | None]:
    """Sample and score in this process, if there is anything to; the second half is for the object store."""
    start = time.perf_counter()
    rollouts = assembly.generate(None if request is None else numbers.named(request))
    if rollouts is None:
        return None, None
    trace: Any = rollouts.trace
    packed = pack(trace.put_away() if isinstance(trace, Denoising) else trace)
    result = RolloutResult(
        rollouts=numbers.numbered(replace(rollouts, trace=None)),
        lengths=rollouts.lengths,
        seconds=time.perf_counter() - start,
        phases=assembly.watch.drain(),
        spans=assembly.watch.take_spans(),
    )
    return result, packed


def to_save(source: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The state of a source with batches that were sampled ahead, their traces in this process, fit to be saved."""
    return plain(source | {name: [resolved(one, seconds=seconds) for one in source.get(name, [])] for name in BATCHES})


def from_saved(source: dict[str, Any]) -> dict[str, Any]:
    """The opposite of ``to_save``: the traces are in the object store, and belong to this process."""
    read = made(source)
    placed = {
        name: [_pointing(one, Stored.put(one.trace), one.lengths) for one in read[name]]
        for name in ("ahead", "replay") if name in read
    }  # fmt: skip
    return read | placed


def _pointing(rollouts: Any, stored: Stored, lengths: Lengths | None) -> Rollouts:
    pointers = StoredRows.to_all(stored) if lengths is None else StoredResponses.to_all(stored, lengths=lengths)
    return replace(rollouts, trace=pointers)  # type: ignore[no-any-return]
