"""Tokens that a part of a pipeline writes before an image is drawn from them: a plan of the image, or a longer prompt.

What it is asked comes from the pipeline's own run. It answers by its class's own ``generate``, in which each token is
chosen by a number that depends on its sample alone. Log-probs are those of the full distribution at the temperature of
sampling, whatever top-k and the like leave out: what one forward over all tokens gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, GenerationConfig, LogitsProcessor

from burnish.diffusion.pipeline.forwards import RunDone
from burnish.diffusion.pipeline.runs import EncoderCache
from burnish.diffusion.pipeline.schedules import Unsupported
from burnish.utils import random
from burnish.utils.errors import UserError
from burnish.utils.weights import quietly

EXACT, ROUNDED = 1e-3, 5e-2  # nats that a token may differ by in the mean: in float32, and in less
BLOCK = 256  # tokens whose random numbers are drawn at once
ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")
FILTERS = ("temperature", "top_k", "top_p", "min_p")


class Asking(EncoderCache):
    """Ends a run with what its writer is asked."""

    def written_by(self, part: Any, /, **arguments: Any) -> Tensor:
        raise RunDone(arguments)


@dataclass(frozen=True)
class Question:
    """What a writer is asked for one prompt, and how it answers."""

    inputs: dict[str, Any]  # of its forward
    settings: GenerationConfig
    banned: Tensor  # [K] ids that are never written

    @classmethod
    def of(cls, part: Any, arguments: dict[str, Any]) -> Question:
        """Args: ``arguments`` of the class's ``generate``."""
        settings, inputs = part._prepare_generation_config(None, **arguments)
        inputs = {name: value for name, value in inputs.items() if value is not None}
        banned, size = set(settings.suppress_tokens or ()), len(part.get_output_embeddings().weight)
        if hasattr(part.config.get_text_config(), "vision_vocab_size"):  # what is no code of an image can't be drawn
            banned.update(range(part.config.vq_config.num_embeddings, size))
        return cls(inputs, settings, torch.tensor(sorted(banned), dtype=torch.long, device=part.device))

    @property
    def temperature(self) -> float:
        """Of sampling: 1 where the pipeline itself takes the likeliest tokens."""
        return float(self.settings.temperature or 1.0) if self.settings.do_sample else 1.0

    def repeated(self, count: int) -> dict[str, Any]:
        """The inputs of as many rows."""
        return {
            name: torch.cat([value] * count) if isinstance(value, Tensor) else value
            for name, value in self.inputs.items()
        }

    def logprobs(self, logits: Tensor) -> Tensor:
        """Of every token [..., V], float32."""
        return self.allowed(logits).div(self.temperature).log_softmax(-1)

    def allowed(self, logits: Tensor) -> Tensor:
        """Logits [..., V], -inf for what is never written."""
        return logits.float().index_fill(-1, self.banned, -torch.inf)


class Chooser(LogitsProcessor):  # type: ignore[misc]
    """Chooses the next token of each row: all others become impossible."""

    def __init__(self, question: Question, filters: Any, keys: Sequence[tuple[random.Part, ...]]) -> None:
        """Args: ``filters`` of what is not likely enough; ``keys`` of the rows."""
        self._question, self._filters, self._keys = question, filters, keys
        self.logprobs: list[Tensor] = []  # [B] each, of the tokens that were chosen

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        block, place = divmod(len(self.logprobs), BLOCK)
        if place == 0:  # some pipelines set no bound to what is written
            self._numbers = random.uniform(BLOCK, [(*key, block) for key in self._keys]).to(scores.device)
        likely = self._filters(input_ids, self._question.allowed(scores)).softmax(-1)
        cumulative = likely.cumsum(-1, dtype=torch.float64)
        number = self._numbers[:, place, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, number, right=True).clamp_max(scores.shape[-1] - 1)  # of NaN
        self.logprobs.append(self._question.logprobs(scores).gather(-1, token)[:, 0])
        return torch.full_like(scores, -torch.inf).scatter(-1, token, 0.0)


class DrawsOnCpu(LogitsProcessor):  # type: ignore[misc]
    """Draws the next token of each row from the CPU's generator, which gives the same on every device."""

    def __init__(self, filters: Any) -> None:
        """Args: ``filters`` are those of sampling."""
        self._filters = filters

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        likely = self._filters(input_ids, scores).softmax(-1)
        token = torch.multinomial(likely.cpu(), 1).to(scores.device)
        return torch.full_like(scores, -torch.inf).scatter(-1, token, 0.0)


def generated(part: Any, arguments: dict[str, Any]) -> Tensor:
    """What the ``generate`` of a part that is not trained returns, drawn by the CPU's generator."""
    settings, _ = part._prepare_generation_config(None, **arguments)
    if part.device.type != "cpu" and settings.do_sample:
        chosen = {name: getattr(settings, name) for name in FILTERS}
        filters = part._get_logits_processor(GenerationConfig(do_sample=True, **chosen))
        arguments = {**arguments, "do_sample": False, "logits_processor": [DrawsOnCpu(filters)]}
    return part.generate(**arguments)  # type: ignore[no-any-return]


def write(
    part: Any, question: Question, keys: Sequence[tuple[random.Part, ...]], compute: torch.dtype
) -> list[tuple[tuple[int, ...], Tensor]]:
    """Tokens of several samples of a prompt, its end included, and the log-prob [T] of each.

    Args:
        part: writes them.
        question: of the prompt.
        keys: of the samples; what is written depends on nothing else.
        compute: precision of its forward passes.

    Raises:
        UserError: log-probs are NaN or infinite.
    """
    settings, inputs = question.settings, question.repeated(len(keys))
    ends = {name: getattr(settings, name) for name in ENDS}
    chosen = {name: getattr(settings, name) for name in FILTERS} if settings.do_sample else {}
    sampling = GenerationConfig(do_sample=settings.do_sample, **chosen)
    with quietly("transformers"), torch.no_grad(), torch.autocast(part.device.type, compute, compute != torch.float32):
        chooser = Chooser(question, part._get_logits_processor(sampling), keys)
        plain = GenerationConfig(max_new_tokens=settings.max_new_tokens, **ends)
        rows = part.generate(**inputs, generation_config=plain, logits_processor=[chooser])
    ids, logprob = rows[:, inputs["input_ids"].shape[1] :].tolist(), torch.stack(chooser.logprobs, 1).cpu()
    if not bool(logprob.isfinite().all()):
        raise UserError(
            "tokens that are written before images have NaN or infinite log-probs: the policy has diverged. Lower "
            "optimizer.lr, and resume from the last checkpoint"
        )
    stops = {settings.eos_token_id} if isinstance(settings.eos_token_id, int) else {*(settings.eos_token_id or ())}
    lengths = [next((n for n, token in enumerate(row, 1) if token in stops), len(row)) for row in ids]
    return [(tuple(row[:n]), own[:n]) for row, own, n in zip(ids, logprob, lengths, strict=True)]


def check_tokens(
    part: Any, question: Question, written: Sequence[int], logprob: Tensor, *, compute: torch.dtype
) -> None:
    """Compare the log-probs [T] of tokens as they were written with those of all of them at once.

    Raises:
        Unsupported: they differ.
    """
    again = token_logprobs(part, question, [written], compute)[0].cpu()
    apart = float((again - logprob).abs().mean())
    if not apart <= (EXACT if compute == torch.float32 else ROUNDED):
        raise Unsupported(
            f"tokens that a {type(part).__name__} writes have other log-probs, by {apart:.2g} nats, once it reads all "
            "of them; leave it out of model.networks"
        )


def token_logprobs(part: Any, question: Question, written: Sequence[Sequence[int]], compute: torch.dtype) -> Tensor:
    """Log-probs [B, T] of what was written, with gradients, by two forwards: of the prompt, and of all tokens at once.

    There are always two, as ranks that hold the part together make the same number.

    Args:
        part: wrote them.
        question: of the prompt.
        written: ids of B samples of that prompt; rows end in zeros.
        compute: precision of the forward passes.
    """
    inputs, count = question.repeated(len(written)), max(map(len, written))
    longest = max(count, 2)
    prompt = inputs.pop("input_ids")
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in written], device=prompt.device)
    seen = inputs.pop("attention_mask", torch.ones_like(prompt))
    cache = DynamicCache(config=part.config.get_text_config(decoder=True))
    given = {**inputs, "past_key_values": cache, "use_cache": True}
    with torch.autocast(part.device.type, compute, compute != torch.float32):
        first = part.prepare_inputs_for_generation(prompt, attention_mask=seen, is_first_iteration=True, **given)
        start = part(**first).logits[:, -1:]
        seen = torch.cat([seen, seen.new_ones(len(ids), longest - 1)], 1)
        further = torch.cat([prompt, ids[:, :-1]], 1)
        rest = part.prepare_inputs_for_generation(
            further, attention_mask=seen, next_sequence_length=longest - 1, **given
        )
        logits = torch.cat([start, part(**rest).logits], 1)
    found = question.logprobs(logits).gather(-1, ids[..., None])[..., 0]
    real = torch.tensor([[n < len(row) for n in range(longest)] for row in written], device=found.device)
    return torch.where(real, found, 0.0)[:, :count]
