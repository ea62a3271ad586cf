"""What a class is tried with when it is loaded, and what its own forward makes of one row of that."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from burnish.language.model import NOTHING, Shown
from burnish.models.language.own.collation import Conversation
from burnish.models.language.own.forwards import HeadUnusedError
from burnish.models.language.own.trials import samples
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.utils.errors import UserError, first_line

if TYPE_CHECKING:
    from burnish.models.language.universal import UniversalModel

log = logging.getLogger(__name__)

LONGEST = 512  # tokens of a prompt
LENGTHS = (7, 5, 9)  # tokens of the responses


@dataclass(frozen=True)
class Probe:
    """Prompts with responses, and what the class's own forward of each makes of them."""

    completion: Completion  # two responses to each prompt
    expected: Tensor  # [B, T] log-probs, 0 beyond the length

    def select(self, rows: Sequence[int]) -> Probe:
        return Probe(self.completion.select(rows), self.expected[list(rows)])


def any_responses(model: UniversalModel) -> Completion:
    """Prompts with no, one and two pictures, a video and sounds, as far as the model reads them, and any responses.

    The longest is longer than a sliding window, unless that is thousands of tokens: its mask is the class's own.
    """
    long = " ".join(str(number) for number in range(LONGEST))[: 4 * min(window_of(model.config), LONGEST)]
    tried = [("Hello", NOTHING), (f"Count: {long}", NOTHING)]
    if model.processor is not None:
        pictures = samples("image")
        tried += [("What do you see?", Shown(images=pictures[:1])), ("Compare", Shown(images=pictures[1:]))]
    if "video" in model.readable:
        tried.append(("What happens?", Shown(videos=samples("video")[:1])))
    if "audio" in model.readable:
        sounds = samples("audio", model.audio_rate or 0)
        tried += [("What do you hear?", Shown(audios=sounds[:1])), ("And here?", Shown(audios=sounds[1:2]))]
    encoded, first = [], None
    failed, seen = dict[str, Exception](), set[str]()
    for words, shown in tried:
        kinds = ("image", shown.images), ("video", shown.videos), ("audio", shown.audios)
        parts: list[dict[str, str]] = [{"type": kind} for kind, media in kinds for _ in media]
        brought = [kind for kind, media in kinds if media] or ["text"]
        try:
            chat = [{"role": "user", "content": [*parts, {"type": "text", "text": words}]}]
            prompt = model.encode(chat, shown)
            with torch.no_grad():
                model.forwards.states(model.network, model.forwards.inputs(model.network, Conversation.prompts(prompt)))
            encoded.append(prompt)
            seen |= {*brought}
        except HeadUnusedError:
            raise
        except Exception as error:  # processors and towers raise anything for what they don't take
            first = first or error
            failed = dict.fromkeys(brought, error) | failed
    if not encoded:
        why = failed.get("image", first)  # some take none without a picture
        assert why is not None
        name = type(model.network).__name__
        raise UserError(
            f"model.path is {model.path}: {name} takes no prompt: {first_line(why)}; give a model that "
            "transformers runs on text or media alone, or fetch this one again"
        ) from why
    if first:
        log.warning("%s: not compared on all kinds of prompts: %s", model.path, first)
    model.unread = {kind: str(error) for kind, error in failed.items() if kind not in seen}
    table = Encoded.cat(encoded)
    banned = set(model.banned.tolist()) | set(model.stop)
    allowed = [token for token in range(min(model.vocabulary, len(model.tokenizer))) if token not in banned]
    draw = torch.Generator().manual_seed(0)
    index = torch.arange(len(table)).repeat_interleave(2)
    length = torch.tensor([LENGTHS[row % len(LENGTHS)] for row in range(len(index))])
    chosen = torch.tensor(allowed)[torch.randint(len(allowed), (len(index), max(LENGTHS)), generator=draw)]
    ids = chosen * (torch.arange(max(LENGTHS)) < length[:, None])
    return Completion.of_text(Gathered(table=table, index=index), ids, length, axes=model.axes)


def window_of(config: Any) -> int:
    """The smallest window or chunk that a configuration names; 1 if there is none."""
    values = config.get_text_config().to_dict()
    named = [values.get(name) for name in ("sliding_window", "attention_chunk_size")]
    return min((int(value) for value in named if value), default=1)


def own_logprobs(
    model: UniversalModel, network: Any, completion: Completion, fill: dict[str, int], *, temperature: float = 1.0
) -> Tensor:
    """Log-probs [B, T] of responses by the class's own forward of one row, its positions left to it."""
    logits = own_logits(model, network, completion, fill)
    return logprobs_of(model, [own / temperature for own in logits], completion)


def own_logits(model: UniversalModel, network: Any, completion: Completion, fill: dict[str, int]) -> list[Tensor]:
    """Logits [T, V] of every response."""
    found = []
    lengths = completion.prompts.table.lengths
    for row, one in enumerate(Conversation.of(completion, fill)):
        inputs = model.forwards.inputs(network, [one])
        inputs.pop("position_ids", None)
        with torch.no_grad():
            out, _ = model.forwards.call(network, inputs | {"use_cache": False}, logits="all")
        start = lengths[int(completion.prompts.index[row])] - 1
        found.append(out.logits[0, start : start + int(completion.length[row])].float())
    return found


def logprobs_of(model: UniversalModel, logits: Sequence[Tensor], completion: Completion) -> Tensor:
    """Log-probs [B, T] of responses, by the logits [T, V] of each; 0 beyond the length."""
    found = torch.zeros(completion.ids.shape)
    for row, own in enumerate(logits):
        allowed = own.index_fill(-1, model.banned.to(own.device), -torch.inf)
        ids = completion.ids[row, : len(own), None].to(own.device)
        found[row, : len(own)] = allowed.log_softmax(-1).gather(-1, ids)[:, 0].cpu()
    return found


def with_twins(model: UniversalModel, probe: Probe, fill: dict[str, int]) -> Probe | None:
    """Each prompt, and itself with another word, with the same responses; None if it has no word."""
    given, special = probe.completion.prompts, set(model.banned.tolist()) | set(model.stop)
    ids = []
    for own in given.table.ids:
        place = next((i for i in reversed(range(len(own))) if int(own[i]) not in special), None)
        if place is None:
            return None
        other = next(token for token in range(model.vocabulary) if token not in special and token != own[place])
        ids.append(own.clone().index_fill_(0, torch.tensor([place]), other))
    table = Encoded.cat([given.table, replace(given.table, ids=ids)])
    completion = Completion.of_text(
        Gathered(table=table, index=torch.cat([given.index, given.index + len(ids)])),
        probe.completion.ids.repeat(2, 1), probe.completion.length.repeat(2), axes=model.axes,
    )  # fmt: skip
    return Probe(completion, own_logprobs(model, model.network, completion, fill))
