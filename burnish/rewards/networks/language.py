"""Language models that rewards load: as judges, or with the heads that Burnish trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import AfterValidator

from burnish.language.model.loading import PROCESSORS, load_language_model
from burnish.language.model.reward_head import HeadFile, judged, read_about, read_head
from burnish.options import Count, Finite
from burnish.options.language import LanguageModelOptions
from burnish.registry import options
from burnish.rewards.networks.loading import NetworkOptions, some_counts
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.model.universal import LanguageModel
    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded
    from burnish.types.prompt import Prompt

V = TypeVar("V")


def encode(model: LanguageModel, prompts: Sequence[Prompt], *, media: bool = True) -> Gathered[Encoded]:
    """Prompts as tokens and pixels, each distinct one once; ``media`` false leaves out what they show."""
    from burnish.language.encode import Encoder

    read = [replace(prompt, tools="") if media else _text_of(prompt) for prompt in prompts]
    return Encoder(model, cached=0)(read)


def head_scores(
    model: LanguageModel, weight: Tensor, prompts: Gathered[Encoded], texts: Sequence[str],
    ends: Sequence[Sequence[int] | None],
) -> list[Tensor]:  # fmt: skip
    """Scores of each response [S, H] by heads [H, D]: at the ends of its steps, or as a whole."""
    from burnish.language.logprobs import response_states
    from burnish.language.offline import judged_completion

    trace = judged_completion(model, prompts, texts, ends)
    states = response_states(model, model.network, trace)
    own = weight.to(states.hidden.device)
    values = judged(lambda hidden: hidden @ own.T, states).cpu()
    return [row[mask] for row, mask in zip(values, trace.mask.cpu(), strict=True)]


def sees(folder: Path) -> bool:
    """Whether a model reads images: it then has a processor."""
    return any((folder / name).is_file() for name in PROCESSORS)


@cache
def load_reader(folder: Path, dtype: str, device: str) -> LanguageModel:
    """A model of a folder, which stays as it is; it is loaded once, however many rewards read with it.

    Raises:
        UserError: it can't be loaded.
    """
    options: dict[str, Any] = {"path": str(folder), "dtype": dtype, "device": device}
    return load_language_model(LanguageModelOptions(**options), frozen=True)


@cache
def load_heads(folder: Path, dtype: str, device: str) -> tuple[LanguageModel, Tensor]:
    """A reward model that Burnish wrote, and its heads [H, D]."""
    model, heads, weight = load_reader(folder, dtype, device), read_about(folder).heads, read_head(folder)
    if weight.shape != (len(heads), model.head(model.network).weight.shape[1]):
        raise UserError(f"{folder} has heads of shape {list(weight.shape)}, which don't fit its model; export it again")
    return model, weight


@options
class LoadedOptions(NetworkOptions):
    """A language model that a reward loads."""

    batch_size: Count = 8
    """Samples per forward pass, padded together; 1 makes scores bit for bit independent of the batch."""
    max_length: Count = 4096
    """Longest text that is read, in tokens; the reward of longer ones is missing, they are never truncated."""

    def load(self) -> Any:
        return load_reader(self.folder(), self.dtype, self.resting)

    def by_length(
        self, network: Any, lengths: Sequence[int], longest: int, score: Callable[[Sequence[int]], Iterable[V]],
        after: Sequence[int] = (),
    ) -> list[V | str]:  # fmt: skip
        """What is scored of rows, those of similar length together, which need little padding; or why one is not.

        Args:
            network: that reads them.
            lengths: of the rows, in tokens.
            longest: that is read.
            score: scores some rows, by their numbers.
            after: a number of each row that comes before its length, for rows that are to be together.
        """
        results: list[V | str] = [f"{n} tokens exceed max_length={longest}" for n in lengths]
        order = list(zip(after or [0] * len(lengths), lengths, strict=True))
        rows = sorted((i for i, n in enumerate(lengths) if n <= longest), key=order.__getitem__)
        for i, value in zip(rows, self.in_batches(network, rows, score), strict=True):
            results[i] = value
        return results


@options
class HeadOptions(LoadedOptions):
    """A reward model, and what its heads count."""

    heads: Annotated[dict[str, Finite], AfterValidator(some_counts)] | None = None
    """Weights of the heads in the sum, by name, for reward models of Burnish; null takes the mean of all."""

    def load(self) -> Any:
        return load_heads(self.folder(), self.dtype, self.resting)

    def _about(self) -> HeadFile:
        """What the model says of its heads, which has all that are asked for."""
        about = read_about(self.folder())
        if further := [name for name in self.heads or () if name not in about.heads]:
            raise UserError(
                f"heads of reward {self.name} has {further[0]!r}, but {self.path} has {', '.join(about.heads)}"
            )
        return about

    def _by_heads(
        self, prompts: Sequence[Prompt], texts: Sequence[str], ends: Sequence[Sequence[int] | None], *, media: bool
    ) -> list[list[float] | str]:
        """What the heads make of each step of a response, or of all of it; or why there is nothing.

        Args:
            prompts: of the responses.
            texts: of the responses.
            ends: characters at which steps end; None where a response is judged as a whole.
            media: read what the prompts show.
        """
        about, (model, weight) = self._about(), self.load()
        encoded = encode(model, prompts, media=media)
        index = encoded.index.tolist()
        lengths = [
            encoded.table.lengths[row] + len(model.response_ids(text)) for row, text in zip(index, texts, strict=True)
        ]

        def scores(batch: Sequence[int]) -> list[list[float]]:
            own = [texts[i] for i in batch]
            values = head_scores(model, weight, encoded.select(batch), own, [ends[i] for i in batch])
            return [
                [self._sum(about, row) for row in (one.sigmoid() if about.squashed else one).tolist()] for one in values
            ]

        longest = min(self.max_length, model.max_positions)
        return self.by_length(model.network, lengths, longest, scores, index)  # one forward pass for equal prompts

    def _sum(self, about: HeadFile, values: Sequence[float]) -> float:
        """Of the heads, or their mean."""
        if self.heads is None:
            return sum(values) / len(values)
        named = dict(zip(about.heads, values, strict=True))
        return sum(weight * named[name] for name, weight in self.heads.items())


def _text_of(prompt: Prompt) -> Prompt:
    """A prompt without its images, videos and sounds."""
    turns = [replace(turn, parts=tuple(part for part in turn.parts if part.kind == "text")) for turn in prompt.turns]
    return replace(prompt, messages=tuple(turns), images=(), videos=(), audios=(), tools="")
