"""Prompts as tokens and pixels: encoded here, by processes beside this one ahead of their use, or for several ranks."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from burnish.data.records import data_error
from burnish.language.config import LanguageConfig
from burnish.language.model.base import Positions, decoded
from burnish.language.model.universal import LanguageModel
from burnish.training.ranks import Ranks, distribute, own_rows
from burnish.types.batch import Gathered
from burnish.types.columns import LazyTensors, Made
from burnish.types.completion import Encoded
from burnish.types.prompt import LabelledTools, Prompt, Prompts
from burnish.utils.errors import UserError
from burnish.utils.lru_cache import ENCODED, LruCache
from burnish.utils.supervisor import ChildDied, LoadFailed, ServerPool

OVERHEAD = 1024  # of a prompt's tensors, beside their numbers
TEMPLATE = 256  # tokens of a chat template around a question, at most

STARTING, READING = 300.0, 600.0  # seconds that a process may take to start, and to read what a prompt shows
TRIES = 2  # processes that may die of the same prompt
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "CUDA_VISIBLE_DEVICES": ""}


class Encoder:
    """Prompts as tokens and pixels; the processor sees each of them once, however many responses it gets."""

    def __init__(self, model: LanguageModel, tools: LabelledTools | None = None, *, cached: int = ENCODED) -> None:
        """Make one for a model.

        Args:
            model: whose processor reads them.
            tools: JSON schemas of functions that the prompts tell of.
            cached: bytes of prompts that are kept, at most.
        """
        self.model, self.tools = model, tools or {}
        self.readers: Readers | None = None  # processes that read what prompts show, in place of this one
        self._encoded: LruCache[Encoded] = LruCache(cached, bytes_of)

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """Rows by reference to a table of the distinct prompts."""
        if self.readers is not None and len(unread := self.unread(prompts)) > 1:
            self.readers.read(unread)  # one is read here in the time that its way would take
        return by_reference(prompts, lambda prompt: self._encoded.get(prompt.uid, partial(self._encode, prompt)))

    def unread(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Those prompts, each once, whose media are to be read for the next encoding."""
        unique = {prompt.uid: prompt for prompt in prompts if prompt.media}
        return [prompt for uid, prompt in unique.items() if self._encoded.find(uid) is None]

    def _encode(self, prompt: Prompt) -> Encoded:
        if self.readers is not None and (read := self.readers.found.pop(prompt.uid, None)) is not None:
            return read.result()
        try:
            shown = decoded(prompt, self.model.audio_rate)
            encoded = self.model.encode(prompt.chat(), shown, prompt.told(self.tools))
        except Exception as error:  # decoders and processors raise anything of a file that they can't read
            if isinstance(error, UserError) and not prompt.media:  # it names the model, or what the template misses
                raise
            told = f"{prompt.name}{' shows what' if prompt.media else ''} can't be read: {error}"
            raise UserError(f"{told}; fix it or remove it") from error
        last = int(encoded.ids[0].max()) if len(encoded.ids[0]) else 0
        if last >= self.model.readable_ids:
            raise UserError(
                f"{prompt.name} has token {last}, but the model knows only {self.model.readable_ids}: its tokenizer is "
                "another model's; download the model again"
            )
        return replace(encoded, features=[one.in_precision(self.model.compute) for one in encoded.features])


def by_reference(prompts: Sequence[Prompt], encode: Callable[[Prompt], Encoded]) -> Gathered[Encoded]:
    """A row for each prompt, in a table of the distinct ones."""
    unique = {prompt.uid: prompt for prompt in prompts}
    row = {uid: i for i, uid in enumerate(unique)}
    table = Encoded.cat([encode(prompt) for prompt in unique.values()])
    return Gathered(table=table, index=torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long))


def prompt_lengths(encode: Encoder, prompts: Sequence[Prompt], ranks: Ranks) -> list[int]:
    """Tokens of prompts with what they show and play, shared out over ranks.

    Images are not decoded where a processor tells their tokens from their size; of others nothing is kept.
    """

    def length(prompt: Prompt) -> int:
        known = length_unread(encode.model, prompt, encode.tools)
        return encode([prompt]).table.lengths[0] if known is None else known

    return distribute(ranks, length, prompts)


def length_unread(model: LanguageModel, prompt: Prompt, tools: LabelledTools) -> int | None:
    """Tokens of a prompt with its images, of which only the sizes are read; None where that doesn't tell."""
    if prompt.videos or prompt.audios:
        return None
    with suppress(Exception):  # which are told of, with the prompt's name, where it is encoded
        each = [model.image_tokens(*image.size()) for image in prompt.images]
        if None not in each:
            length = model.count_tokens(prompt.chat(), prompt.told(tools))
            return length - len(each) + sum(tokens or 0 for tokens in each)
    return None


def check_positions(
    prompts: Prompts,
    positions: Positions,
    model: LanguageModel,
    tools: LabelledTools,
    *,
    room: int,
    instead: str,
) -> None:
    """Refuse questions that take more of the model's positions than the longest response leaves.

    Most questions are shorter in bytes already, and a token has at least one byte.

    Args:
        prompts: questions.
        positions: of the model.
        model: that reads them, or its outline.
        tools: JSON schemas of functions that the prompts tell of.
        room: tokens of a response at most.
        instead: what else can be done, for messages; may be empty.

    Raises:
        UserError: there are such questions; the message names the first ones.
    """
    found, longest = [], positions.most
    written = TEMPLATE + (len(json.dumps(tools, default=str)) if tools else 0)
    for prompt in prompts.longer(longest - room):
        bound = prompt.size + room + written
        for image in prompt.images:
            with suppress(OSError, ValueError):  # which is told of elsewhere, with the record
                width, height = image.size()
                bound += 600 + width * height // 196  # at most: some, and one more for every patch of pixels
        if bound <= longest:
            continue
        if (count := length_unread(model, prompt, tools)) is None:
            count = model.count_tokens(prompt.chat(), prompt.told(tools))
        if count + room > longest:
            found.append((count, prompt))
    if found:
        most = max(count for count, _ in found)
        lower = f"lower rollout.max_new_tokens to {longest - most}" if most < longest else ""
        response = "a response" if room == 1 else f"responses of {room} tokens (rollout.max_new_tokens)"
        raise data_error(
            [f"{count} tokens: {prompt.name}" for count, prompt in found],
            f"{len(found)} of {len(prompts)} questions leave no room for {response}: the model has {longest} "
            f"({positions.name}), and the longest question {most} tokens; "
            + ", or ".join(filter(None, (lower, "shorten them", instead))),
        )


def bytes_of(encoded: Encoded) -> int:
    """In memory, of tokens and media."""
    tensors = [*encoded.ids, *encoded.positions]
    for features in encoded.features:
        tensors += [*features.tensors.values(), *features.kinds.values()]
    return OVERHEAD + sum(tensor.nbytes for tensor in tensors)


class Readers:
    """Processes that read what prompts show, each asked by a thread of its own.

    They have the model's tokenizer and processor, and its network without weights: what they return is what would be
    made here, to the bit.
    """

    def __init__(self, config: LanguageConfig, tools: LabelledTools) -> None:
        """Nothing is started before there is something to read."""
        self.config, self.tools = config, tools
        self._pool = ThreadPoolExecutor(config.data.workers, thread_name_prefix="reader")
        self.found: dict[str, Future[Encoded]] = {}  # by the uid of the prompt; what can't be read is a UserError
        self._largest = 1  # batch of ``ahead``
        self._servers = ServerPool(config.data.workers, _load, (config, self.tools), ENVIRONMENT)

    def read(self, prompts: Sequence[Prompt]) -> None:
        """Begin to read what these show."""
        for prompt in prompts:
            if prompt.uid not in self.found:
                self.found[prompt.uid] = self._pool.submit(self._encoded, prompt)

    def ahead(self, prompts: Sequence[Prompt]) -> None:
        """The same for the next batch, beside the one that is to be used now; what nobody took before is dropped."""
        self.read(prompts)
        self._largest = max(self._largest, len(prompts))
        for uid in list(self.found)[: -2 * self._largest]:
            self.found.pop(uid).cancel()

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._servers.close()
        self._pool.shutdown()

    def _encoded(self, prompt: Prompt) -> Encoded:
        workers, how = f"data.workers={self.config.data.workers}", ""
        for _ in range(TRIES):
            try:
                with self._servers.one() as server:
                    server.load(STARTING, "")
                    complaint, found = server.call(READING, "", prompt)
            except (ChildDied, LoadFailed) as error:
                how = str(error)
            except TimeoutError:
                raise UserError(
                    f"{prompt.name} shows what a process of {workers} has not read in {READING:g} s; fix it or "
                    "remove it"
                ) from None
            else:
                if complaint:
                    raise UserError(complaint)
                return pickle.loads(found)  # type: ignore[no-any-return]
        raise UserError(
            f"{prompt.name} shows what {TRIES} processes ({workers}) died of reading ({how}); remove it, or look at "
            "it with data.workers=0, and at the machine's free memory"
        )


def _load(argument: tuple[LanguageConfig, LabelledTools]) -> Callable[[Prompt], tuple[str, bytes]]:
    """In a process: the function that reads what a prompt shows, or says what is wrong with it."""
    from burnish.language.model.loading import load_outline

    config, tools = argument
    torch.set_num_threads(1)
    encode = Encoder(load_outline(config.model), tools, cached=0)

    def read(prompt: Prompt) -> tuple[str, bytes]:
        try:
            return "", pickle.dumps(encode([prompt]).table)  # by value: a pipe would share memory
        except UserError as error:
            return str(error), b""

    return read


# a prompt without what it shows, and the shapes and types of that by name: all that every rank knows of it
Outline = tuple[Encoded, dict[str, tuple[tuple[int, ...], torch.dtype]]]


class SharedPrompts:
    """Encodes prompts for all ranks. What a prompt shows is processed by one of them for its length, and by those that
    use its row, where they use it; pixels never travel."""

    def __init__(self, encode: Callable[[Sequence[Prompt]], Gathered[Encoded]], ranks: Ranks) -> None:
        """Take over who encodes.

        Args:
            encode: in this process; it keeps what was used last.
            ranks: all of which encode the same prompts together.
        """
        self.encode, self.ranks = encode, ranks
        self._known: LruCache[Outline] = LruCache(ENCODED, lambda outline: bytes_of(outline[0]))

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        """As the encoder does, with what is shown in place of pixels.

        Raises:
            UserError: one of them can't be read, on whichever rank.
        """
        outlines = self._outlines({prompt.uid: prompt for prompt in prompts if prompt.media})

        def encoded(prompt: Prompt) -> Encoded:
            outline = outlines.get(prompt.uid)
            return self.encode([prompt]).rows() if outline is None else self._lazily(prompt, *outline)

        return by_reference(prompts, encoded)

    def _outlines(self, prompts: dict[str, Prompt]) -> dict[str, Outline]:
        known = {uid: found for uid in prompts if (found := self._known.find(uid)) is not None}
        new = [uid for uid in prompts if uid not in known]
        if not new:
            return known

        def own() -> list[Outline]:
            mine = [prompts[uid] for uid in new[own_rows(self.ranks, len(new))]]
            if not mine:
                return []
            encoded = self.encode(mine).rows()  # together: other processes may read them at once
            return [_outline(encoded.select([row])) for row in range(len(encoded))]

        every: dict[str, Any] = dict(zip(new, chain.from_iterable(self.ranks.each(own)), strict=True))
        return known | {uid: self._known.get(uid, partial(every.__getitem__, uid)) for uid in new}

    def _lazily(self, prompt: Prompt, outline: Encoded, shapes: dict[str, Any]) -> Encoded:
        def rows_of(name: str, rows: Tensor) -> Tensor:
            return self.encode([prompt]).table.features[0].tensors[name].index_select(0, rows)

        if any(not shape for shape, _ in shapes.values()):  # single numbers have no rows
            return self.encode([prompt]).rows()
        sources = {
            name: Made(shape=shape, dtype=dtype, make=partial(rows_of, name)) for name, (shape, dtype) in shapes.items()
        }
        return replace(outline, features=[replace(outline.features[0], tensors=LazyTensors(sources))])


def _outline(encoded: Encoded) -> Outline:
    """That of one prompt."""
    features = encoded.features[0]
    shapes = {name: (tuple(one.shape), one.dtype) for name, one in features.tensors.items()}
    return replace(encoded, features=[replace(features, tensors={})]), shapes
