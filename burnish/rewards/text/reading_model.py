"""Language models that read responses with their prompts and pictures, for rewards: by heads, or as judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.language.model.loading import PROCESSORS, load_language_model
from burnish.language.model.reward_head import HeadFile, judged, read_about, read_head
from burnish.options.language import LanguageModelOptions
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from burnish.language.model.universal import LanguageModel
    from burnish.types.batch import Gathered
    from burnish.types.completion import Encoded
    from burnish.types.prompt import Prompt


@dataclass
class Reader:
    """A loaded model that stays as it is."""

    model: LanguageModel
    device: str
    put_away: bool  # its weights are in CPU memory while nothing is read

    def awake(self) -> AbstractContextManager[None]:
        """With its weights where they compute, and without gradients."""
        return awake(self.model.network, self.device, self.put_away)

    def encode(self, prompts: Sequence[Prompt], *, media: bool = True) -> Gathered[Encoded]:
        """Prompts as tokens and pixels, each distinct one once; ``media`` false leaves out what they show."""
        import torch

        from burnish.language.model.base import NOTHING, decoded
        from burnish.types.batch import Gathered
        from burnish.types.completion import Encoded

        table: dict[str, Encoded] = {}
        for prompt in prompts:
            if prompt.uid in table:
                continue
            shown = decoded(prompt, self.model.audio_rate) if media else NOTHING
            chat = prompt.chat() if media else [_words(message) for message in prompt.chat()]
            table[prompt.uid] = self.model.encode(chat, shown)
        row = {uid: i for i, uid in enumerate(table)}
        index = torch.tensor([row[prompt.uid] for prompt in prompts], dtype=torch.long)
        return Gathered(table=Encoded.cat(list(table.values())), index=index)


@dataclass
class HeadedReader(Reader):
    """A reward model that Burnish wrote."""

    about: HeadFile
    weight: Tensor  # [H, D]

    def scores(
        self, prompts: Gathered[Encoded], texts: Sequence[str], ends: Sequence[Sequence[int] | None]
    ) -> list[list[list[float]]]:
        """Scores of responses [B][S][H]: at the ends of their steps, or of each as a whole."""
        from burnish.language.logprobs import response_states
        from burnish.language.offline import judged_completion
        from burnish.types.judgements import at_steps

        trace = judged_completion(self.model, prompts, texts, ends)
        with self.awake():
            states = response_states(self.model, self.model.network, trace)
            weight = self.weight.to(states.hidden.device)
            values = judged(lambda hidden: hidden @ weight.T, states).cpu()
        if self.about.squashed:
            values = values.sigmoid()
        found = at_steps(values, trace.mask, int(trace.mask.sum(1).max()))
        counts = trace.mask.sum(1).tolist()
        return [row[:count] for row, count in zip(found.tolist(), counts, strict=True)]


@contextmanager
def awake(network: nn.Module, device: str, put_away: bool) -> Iterator[None]:
    """A network with its weights on a device, without gradients; ``put_away`` brings them there, and back."""
    import torch

    with torch.no_grad():
        if not put_away:
            yield
            return
        network.to(device)
        try:
            yield
        finally:
            network.to("cpu")
            torch.cuda.empty_cache()


def sees(folder: Path) -> bool:
    """Whether a model reads pictures: it then has a processor."""
    return any((folder / name).is_file() for name in PROCESSORS)


@cache
def load_reader(folder: Path, dtype: str, device: Literal["cpu", "cuda"], put_away: bool, headed: bool) -> Any:
    """A model of a folder; it is loaded once, however many rewards read with it.

    Raises:
        UserError: it can't be loaded.
    """
    options: dict[str, Any] = {"path": str(folder), "dtype": dtype, "device": "cpu" if put_away else device}
    try:
        model = load_language_model(LanguageModelOptions(**options), frozen=True)
    except UserError as error:
        raise UserError(f"{folder} can't be loaded to score with: {error}") from None
    if not headed:
        return Reader(model, device, put_away)
    about, weight = read_about(folder), read_head(folder)
    if weight.shape[0] != len(about.heads) or weight.shape[1] != model.head(model.network).weight.shape[1]:
        raise UserError(f"{folder} has heads of shape {list(weight.shape)}, which don't fit its model; export it again")
    return HeadedReader(model, device, put_away, about, weight)


def _words(message: dict[str, Any]) -> dict[str, Any]:
    """A message without its pictures, videos and sounds."""
    return message | {"content": [part for part in message["content"] if part["type"] == "text"]}
