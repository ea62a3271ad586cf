"""What a class can do beside its own forward of one row: what gives other numbers is left out."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, get_args

import torch
from torch import Tensor

from burnish.language.decoders import CacheKind, decode, further
from burnish.language.logprobs import WITHOUT_PADDING, Layout, paired, response_logprobs, scores_of_logits
from burnish.language.model.base import NOTHING, Shown
from burnish.language.model.forwards import conversations, samples, switch
from burnish.language.model.known import upload
from burnish.language.model.universal import LanguageModel
from burnish.language.sampling import Sampling
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded
from burnish.utils.errors import UserError, first_line

log = logging.getLogger(__name__)

EXACT, ROUNDED = 1e-4, 5e-2  # nats: the largest difference in float32, and the mean one in half precision
AHEAD = 1e-2  # a token's influence on those before it, relative to those after
NOISE = 1e-6  # rounding of logits in float32, relative to the largest
MOVING = ("video", "audio", "input_features", "feature_attention_mask")  # in names of media that are no images
PLANNED = {"full_attention", "sliding_attention"}  # kinds of layers
LONGEST = 512  # tokens of a prompt that is tried
LENGTHS = (7, 5, 9)  # tokens of the responses
SLIPS = (RuntimeError, ValueError, IndexError, AttributeError, TypeError, KeyError, NotImplementedError, AssertionError,
         StopIteration)  # fmt: skip


@dataclass(frozen=True)
class Capabilities:
    """What a class can do, as compared on load; the first of packed and padded that it has is how rows are run."""

    packed: bool = False  # the decoder runs packed and shared prompts under Burnish's plan
    padded: bool = False  # rows of different lengths share a forward, padded on the right; else each is alone
    mixes: bool = True  # conversations with other kinds of media can be in one forward
    fast: bool = False  # its layers are Llama's or Gemma's, and responses are decoded by Burnish's own decoder
    cache: CacheKind = "none"  # how the others are decoded
    unpacked: frozenset[str] = frozenset()  # media with which prompts are not packed
    scale: float = 1.0  # of the head's product
    cap: float | None = None  # of its logits
    own_logits: bool = False  # its logits are otherwise than that
    fill: dict[str, int] = field(default_factory=dict)  # kinds of a response's tokens that are not 0

    @property
    def name(self) -> str:
        rows = "packed rows" if self.packed else "padded rows" if self.padded else "one row a forward"
        caches = {"padded": "its own cache", "alone": "its own cache, prompt by prompt", "none": "no cache"}
        return f"{rows}, responses by {'our own decoder' if self.fast else caches[self.cache]}"


def check(model: LanguageModel, best: Capabilities | None = None) -> Capabilities:
    """Find out what gives the same log-probs as the class's own forward of one row.

    Args:
        model: in float32, unless it is known what is best.
        best: what its class can do in float32, of which that is left out whose rounding changes more than numbers.

    Raises:
        UserError: nothing does.
    """
    name, exact = type(model.network).__name__, best is None
    said = f"model.path is {model.path}: {name}"
    completion = any_responses(model)
    if best is None:
        head, fill = _head(model, completion), _kinds(model, completion)
        if not _causal(model, completion, fill):
            raise UserError(
                f"{said} can't be trained, as its tokens read those that come after them, as those of an encoder; give "
                "a decoder"
            )
        best = replace(head, packed=True, padded=True, fast=True, cache="padded", fill=fill)
    alone = replace(best, packed=False, padded=False, mixes=False, fast=False, cache="none")

    def expected(responses: Completion) -> Tensor:
        """By a forward of one row: the class's own, and where logits are rounded the one that agrees with it."""
        if exact:
            return own_logprobs(model, model.network, responses, alone.fill)
        model.capabilities = alone
        with torch.no_grad():
            return _scored(model, "padded", responses).logprob

    differences, everything, own = dict[str, str](), range(len(completion)), expected(completion)
    # guidance takes one row so many times, and takes off another; larger logits round further apart
    slack = (EXACT if exact else ROUNDED) * (2 * model.guidance - 1) * max(1.0, float(own[completion.mask].std()))

    def agrees(
        what: str, tried: Capabilities, run: Callable[[Completion], Completion], rows: Sequence[int] = everything
    ) -> bool:
        """Whether log-probs are those of a forward of one row, which is asked for other responses too."""
        part = completion.select(rows)
        model.capabilities = tried
        try:
            with torch.no_grad():
                found = run(part)
        except SLIPS as error:  # whatever a class makes of a form that it was not written for
            differences[what] = f"fails: {first_line(error)}"
            return False
        off = (found.logprob - (own[list(rows)] if found.ids is part.ids else expected(found))).abs()[found.mask]
        # in half precision single tokens round far apart
        apart = float(off.max() if exact else off.mean())
        differences[what] = f"{apart:.1g}"
        return apart <= slack

    def refusal(what: str) -> UserError:
        return UserError(
            f"{said} can't be trained, as log-probs ({what}) are not those of its own forward (difference in nats: "
            f"{differences[what]}); give another model"
        )

    def agrees_by(way: Callable[[Tensor, torch.device], Tensor]) -> bool:
        model.forwards.upload = way
        return agrees("one row", alone, partial(_scored, model, "padded"))

    # the CPU knows whole numbers on the GPU too, if the class allows it
    if exact and not any(map(agrees_by, (upload, to_device))):
        raise refusal("one row")
    padded = [
        replace(alone, padded=True, mixes=mixes) for mixes in (True, False) if best.padded and mixes <= best.mixes
    ]
    known = next((one for one in padded if agrees("padded rows", one, partial(_scored, model, "padded"))), alone)
    kinds = get_args(CacheKind)
    caches = [replace(known, cache=cache) for cache in kinds[kinds.index(best.cache) :]]
    cached = next((one for one in caches if agrees(f"cache: {one.cache}", one, partial(_decoded, model))), None)
    if cached is None:
        raise refusal("cache: none")
    known = _packed(model, cached, best, completion, agrees)
    model.capabilities = known
    shown = ", ".join(f"{what} {difference}" for what, difference in differences.items())
    precision = str(model.compute).removeprefix("torch.")
    log.warning("%s: %s (in %s, differences from one row a forward in nats: %s)", name, known.name, precision, shown)
    return known


def _packed(
    model: LanguageModel, known: Capabilities, best: Capabilities, completion: Completion, agrees: Callable[..., bool]
) -> Capabilities:
    """With packed rows, and Burnish's decoder, where they agree: for all media, or for images alone."""
    if not plannable(model, known):
        return known
    decoder = model.text(model.network)
    features = completion.prompts.rows().features
    moving = frozenset(name for one in features for name in one.tensors if any(kind in name for kind in MOVING))
    for unpacked in dict.fromkeys((best.unpacked, moving)) if best.packed else ():
        switch(model.network, decoder, on=True, tower=not unpacked)
        rows = [row for row, one in enumerate(features) if not unpacked & one.tensors.keys()]
        tried = replace(known, packed=True, unpacked=unpacked)
        if all(agrees(f"{layout} rows", tried, partial(_scored, model, layout), rows) for layout in WITHOUT_PADDING):
            known = tried
            break
    else:
        switch(model.network, decoder, on=False)
        rows = list(range(len(completion)))
    fast = replace(known, fast=True)
    return fast if best.fast and agrees("own decoder", fast, partial(_decoded, model), rows) else known


def plannable(model: LanguageModel, known: Capabilities) -> bool:
    """Whether packed rows are worth a try; a window has to be shorter than the longest prompt."""
    config = model.text(model.network).config
    kinds = set(getattr(config, "layer_types", None) or [])
    has_plan = model.own_attention and config._attn_implementation == "sdpa" and kinds <= PLANNED
    return not known.own_logits and has_plan and window_of(model.config) <= LONGEST


def _scored(model: LanguageModel, layout: Layout, completion: Completion) -> Completion:
    found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout)
    return replace(completion, logprob=found.logprob.cpu())


def _decoded(model: LanguageModel, completion: Completion) -> Completion:
    """Responses that are decoded, of different lengths: two to the first prompt, one to each of the others."""
    # not the table, whose media of other rows would keep it from being tried
    prompts = completion.select(range(0, len(completion), 2)).prompts.rows()
    index = [0, *range(len(prompts))]
    limits = [LENGTHS[row % len(LENGTHS)] for row in range(len(index))]
    sampling = Sampling(max_new_tokens=max(LENGTHS))
    return decode(model, model.network, prompts, index, range(len(index)), sampling, limits=limits)


def _head(model: LanguageModel, completion: Completion) -> Capabilities:
    """What a class makes of its head's product."""
    one = model.forwards.inputs(model.network, conversations(completion.select([0]), {}))
    with torch.no_grad():
        out, states = model.forwards.call(model.network, one | {"use_cache": False}, logits="all")
        weight = model.head(model.network).weight
        inputs = model.predicting(model.network, states[0])
        plain = torch.nn.functional.linear(inputs.to(weight.dtype), weight).float()
    found = out.logits[0].float()
    if found.shape != plain.shape:  # the last rows of its head pad the vocabulary, and have no logits (Inkling)
        return Capabilities(own_logits=True)
    slack = 1e-4 * float(plain.abs().max())
    configs = (model.config.get_text_config(), model.config)
    caps = {getattr(one, name, None) for one in configs for name in ("final_logit_softcapping", "logits_soft_cap")}
    fits = [fitted_head(found, plain, cap) for cap in (None, *filter(None, caps))]
    error, scale, cap = min(fits, key=lambda fit: fit[0] * (1 if fit[2] is None else 2))  # of about equal ones no cap
    return Capabilities(scale=scale, cap=cap) if error <= slack else Capabilities(own_logits=True)


def fitted_head(logits: Tensor, plain: Tensor, cap: float | None) -> tuple[float, float, float | None]:
    """How far logits are from products, scaled and capped at most: the error, the scale, and the cap before scaling."""
    within = logits if cap is None else cap * (logits / cap).clamp(-1 + 1e-6, 1 - 1e-6).atanh()
    slope = torch.ones_like(logits) if cap is None else 1 - (logits / cap).square()  # near the cap rounding is all
    scale = float((slope.square() * within * plain).sum() / (slope * plain).square().sum())
    scale = 1.0 if abs(scale - 1) < 1e-3 else scale
    own = scale * plain if cap is None else cap * (scale * plain / cap).tanh()
    return float((logits - own).abs().max()), scale, cap and cap / (scale or math.inf)


def _kinds(model: LanguageModel, completion: Completion) -> dict[str, int]:
    """Which kinds the tokens of a response have for the class: those that it gives to what it writes, if not 0."""
    for features in completion.prompts.table.features:
        for name, kinds in features.kinds.items():
            added = further(model.network, {}, {name: kinds[None]})[name]
            if added.shape[1] > len(kinds) and int(added[0, -1]):
                return {name: int(added[0, -1])}
    return {}


def _causal(model: LanguageModel, completion: Completion, fill: dict[str, int]) -> bool:
    """Whether another token in the middle of a response leaves the logits of the tokens before it as they are.

    By how much it changes those after it: with small weights the logits of an encoder hardly differ in either.
    """
    some = completion.select([0])
    column = int(some.length[0]) // 2
    other = completion.ids[completion.ids != some.ids[0, column]][0]
    changed = replace(some, ids=some.ids.index_fill(1, torch.tensor([column]), int(other)))
    own, others = (own_logits(model, model.network, one, fill)[0] for one in (some, changed))
    moved = (own - others).abs().amax(-1)
    # the last logits before it are those that predict it; the next ones are its own, which follow it most
    before, after = float(moved[: column + 1].max()), float(moved[column + 2 :].max())
    return before <= max(AHEAD * after, NOISE * float(own.abs().max()))


def any_responses(model: LanguageModel) -> Completion:
    """Prompts with no, one and two images, a video and sounds, as far as the model reads them, and any responses.

    The longest is longer than a sliding window, unless that is thousands of tokens: its mask is the class's own.
    """
    long = " ".join(str(number) for number in range(LONGEST))[: 4 * min(window_of(model.config), LONGEST)]
    images, sounds = samples("image"), samples("audio", model.audio_rate or 0)
    tried = [
        ("text", "Hello", NOTHING),
        ("text", f"Count: {long}", NOTHING),
        ("image", "What do you see?", Shown(images=images[:1])),
        ("image", "Compare", Shown(images=images[1:])),
        ("video", "What happens?", Shown(videos=samples("video", frames=model.least_frames)[:1])),
        ("audio", "What do you hear?", Shown(audios=sounds[:1])),
        ("audio", "And here?", Shown(audios=sounds[1:2])),
    ]
    encoded, failed, seen = [], dict[str, Exception](), set[str]()
    for kind, words, shown in tried:
        if kind not in ("text", *model.readable):
            continue
        parts: list[dict[str, str]] = [{"type": kind} for _ in shown.sizes.get(kind, ())]
        try:
            chat = [{"role": "user", "content": [*parts, {"type": "text", "text": words}]}]
            prompt = model.encode(chat, shown)
            with torch.no_grad():
                inputs = model.forwards.inputs(model.network, prompt)
                model.forwards.call(model.network, inputs | {"use_cache": False}, logits="last")
            encoded.append(prompt)
            seen.add(kind)
        except Exception as error:  # processors and towers raise anything for what they don't take
            failed.setdefault(kind, error)
    if not encoded:
        why = failed.get("image", failed["text"])  # some take none without an image
        raise UserError(
            f"model.path is {model.path}: {type(model.network).__name__} takes no prompt: {first_line(why)}; give a "
            "model that transformers runs on text or media alone, another model.dtype, or download this one again"
        ) from why
    if failed:
        log.warning("%s: not compared on all kinds of prompts: %s", model.path, next(iter(failed.values())))
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
    named = [values.get(name) for name in ("sliding_window", "attention_chunk_size", "index_block_size")]
    return min((int(value) for value in named if value), default=1)


def own_logprobs(
    model: LanguageModel, network: Any, completion: Completion, fill: dict[str, int], *, temperature: float = 1.0
) -> Tensor:
    """Log-probs [B, T] of responses by the class's own forward of one row; 0 beyond their lengths."""
    logits = torch.cat(own_logits(model, network, completion, fill))
    ids, banned = completion.ids[completion.mask].to(logits.device), model.banned.to(logits.device)
    logprob, _ = scores_of_logits(logits, ids, temperature=temperature, banned=banned)
    return torch.zeros(completion.ids.shape).masked_scatter(completion.mask, logprob.cpu())


def own_logits(model: LanguageModel, network: Any, completion: Completion, fill: dict[str, int]) -> list[Tensor]:
    """Logits [T, V] of every response by the class's own forward of one row, its positions left to it."""
    found = []
    rows = paired(model, completion)
    texts, prompts = conversations(rows, fill), rows.lengths.prompt.tolist()
    for row, length in enumerate(rows.length.tolist()):
        inputs = model.forwards.inputs(network, texts.select([row]))
        inputs.pop("position_ids", None)
        inputs = {name: value.as_subclass(Tensor) for name, value in inputs.items()}
        with torch.no_grad():
            out, _ = model.forwards.call(network, inputs | {"use_cache": False}, logits="all")
        found.append(out.logits[0, prompts[row] - 1 :][:length].float())
    count = len(completion)
    if len(found) == count:
        return found
    return [model.joined(torch.cat(pair)) for pair in zip(found[:count], found[count:], strict=True)]
