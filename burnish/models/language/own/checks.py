"""What is made of a class beside its own forward of one row: each form that gives other numbers is left out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from burnish.language.decoding import decode
from burnish.language.kept import Going, Kept, Turn
from burnish.language.logprobs import response_logprobs, score
from burnish.language.sampling import Sampling
from burnish.models.language.own.anew import Anew
from burnish.models.language.own.cache import Cached
from burnish.models.language.own.captured import has_plan, switch
from burnish.models.language.own.collation import Conversation, Lengths
from burnish.models.language.own.forwards import HeadUnusedError
from burnish.models.language.own.probe import (
    LENGTHS,
    LONGEST,
    Probe,
    any_responses,
    logprobs_of,
    own_logits,
    own_logprobs,
    window_of,
    with_twins,
)
from burnish.models.language.own.scoring import padded_states, shared_states
from burnish.models.language.own.sounds import lengthen_short
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded, Features, append_turn
from burnish.utils.errors import UserError, first_line

if TYPE_CHECKING:
    from burnish.language.rows import Layout
    from burnish.models.language.universal import UniversalModel

log = logging.getLogger(__name__)

EXACT, ROUNDED = 1e-3, 5e-2  # nats: the largest difference in float32, and the mean one in half precision
AHEAD = {True: 1e-2, False: 0.3}  # a token's influence on those before it, relative to those after; float32, or not
NOISE = 1e-6  # rounding of logits in float32, relative to the largest
STEEP = 1e-2  # largest difference of gradients, relative to the largest gradient
MOVING = ("video", "audio", "input_features", "feature_attention_mask")  # in names of media that are no pictures
SLIPS = (RuntimeError, ValueError, IndexError, AttributeError, TypeError, KeyError, NotImplementedError, AssertionError,
         StopIteration)  # fmt: skip


@dataclass(frozen=True)
class Tiers:
    """What a class can do, as measured."""

    scale: float = 1.0  # of its head's product
    cap: float | None = None  # of its logits
    full_logits: bool = False  # its logits are otherwise than that
    fill: dict[str, int] = field(default_factory=dict)  # kinds of a response's tokens that are not 0
    even: bool = False  # rows of equal length share a forward
    padded: bool = False  # those of different lengths too, padded on the right
    mixes: bool = False  # and a cache, padded on the left
    shared: bool = False  # in training responses share their prompt through the cache
    counted: bool = False  # the cache knows its length
    packed: bool = False  # the decoder runs under Burnish's plan
    unplanned: frozenset[str] = frozenset()  # media that don't: prompts with them run as in the tiers below
    fast: bool = False  # its layers run by Burnish's own decoding
    goes_on: bool = False  # its cache is kept between turns of a conversation
    cacheless: bool = False  # its cache gives other numbers, so that every token is computed with all before it

    @property
    def scored(self) -> Lengths:
        """Lengths of the rows that share a forward."""
        return "any" if self.padded else "equal" if self.even else "one"

    @property
    def cached(self) -> Lengths:
        """Lengths of the prompts that share a cache."""
        return "any" if self.mixes else "equal" if self.even else "one"

    @property
    def name(self) -> str:
        if self.cacheless and not self.fast:
            return f"{replace(self, cacheless=False).name}, decoding without a cache"
        if self.packed:
            return f"tier 3: packed and shared prompts{', own decoding' if self.fast else ''}"
        if self.shared:
            return "tier 2: prompts shared through its own cache"
        if self.padded:
            return "tier 1: padded batches"
        return f"tier 0: {'prompts of one length' if self.even else 'one prompt'} a forward"


def check(model: UniversalModel) -> Tiers:
    """Find out what gives the same log-probs as the class's own forward.

    Raises:
        UserError: nothing does.
    """
    name = type(model.network).__name__
    try:
        tiers, completion = _head(model, any_responses(model))
    except HeadUnusedError:
        raise UserError(
            f"model.path is {model.path}: {name} doesn't call the head that get_output_embeddings() names, so that "
            "its states can't be read; give another model"
        ) from None
    tiers, probe = _responses_kinds(model, tiers, completion)
    if not _causal(model, probe.completion, tiers):
        raise UserError(
            f"model.path is {model.path}: {name} can't be trained, as its tokens read those that come after them, as "
            "those of an encoder; give a decoder"
        )
    measured: dict[str, float] = {}

    def agrees(what: str, found: Callable[[], Tensor], other: Probe | None = None) -> bool:
        measured[what] = _difference(model, found, other or probe)
        return measured[what] <= (EXACT if model.compute == torch.float32 else ROUNDED)

    def demand(what: str, found: Callable[[], Tensor]) -> None:
        if agrees(what, found):
            return
        why = f"has log-probs that differ by {measured[what]:.2g} nats from those of its own forward"
        try:
            found()
        except SLIPS as error:
            why = f"fails where its own forward does not: {first_line(error)}"
        raise UserError(f"model.path is {model.path}: {name} can't be trained, as {what} {why}; give another model")

    alone = replace(tiers, padded=False, mixes=False)
    model.forwards.counts = agrees("positions as for decoding", lambda: _scored(model, probe.completion, alone))
    demand("one row by itself", lambda: _scored(model, probe.completion, alone))
    tiers = replace(tiers, cacheless=not agrees("its cache", lambda: _cached(model, probe.completion, alone)))
    if tiers.cacheless:
        what = "a row of which each token is computed with those before it"
        demand(what, lambda: _cached(model, probe.completion, tiers))
    tiers = replace(tiers, counted=not tiers.cacheless and _counts(model, probe))
    padded = agrees("padded batch", lambda: _scored(model, probe.completion, replace(tiers, padded=True)))
    if not padded:  # pictures and videos may not go together
        model.forwards.collation = replace(model.forwards.collation, mixes=False)
        padded = agrees("padded batch", lambda: _scored(model, probe.completion, replace(tiers, padded=True)))
    tiers = replace(tiers, padded=padded)
    mixed = replace(tiers, mixes=True)
    if padded and not tiers.cacheless and agrees("padded cache", lambda: _cached(model, probe.completion, mixed)):
        tiers = mixed
    if not tiers.mixes:
        tiers = replace(tiers, even=_even(model, probe, tiers, agrees))
    shared = not (tiers.full_logits or tiers.cacheless) and agrees(
        "shared prompts", lambda: _shared(model, probe.completion, tiers)
    )
    tiers = replace(tiers, shared=shared and _same_gradients(model, probe, tiers, measured))
    tiers = _plan(model, probe, tiers, agrees)
    if not (tiers.fast or tiers.cacheless):
        tiers = replace(tiers, goes_on=_goes_on(model, probe.completion, tiers, agrees))
    if "audio" in model.readable and "audio" not in model.unread:
        lengthen_short(model, tiers, EXACT if model.compute == torch.float32 else ROUNDED)
    shown = ", ".join(f"{what} {value:.1g}" for what, value in measured.items())
    log.warning("%s: %s (differences from its own forward in nats: %s)", name, tiers.name, shown)
    return tiers


def _head(model: UniversalModel, completion: Completion) -> tuple[Tiers, Completion]:
    """What a class makes of its head's product."""
    one = model.forwards.inputs(model.network, Conversation.of(completion, {})[:1])
    with torch.no_grad():
        states, logits = model.forwards.states(model.network, one, logits=True)
        module: Any = model.network.get_output_embeddings()
        plain = torch.nn.functional.linear(states.to(module.weight.dtype), module.weight)[0].float()
    assert logits is not None
    found = logits[0].float()
    if found.shape != plain.shape:  # the last rows of its head pad the vocabulary, and have no logits (Inkling)
        return Tiers(full_logits=True), completion
    slack = (1e-4 if model.compute == torch.float32 else 2e-2) * float(plain.abs().max())
    scale = float((found * plain).sum() / plain.square().sum())
    if float((found - scale * plain).abs().max()) <= slack:
        return Tiers(scale=1.0 if abs(scale - 1) < 1e-3 else scale), completion
    for config in (model.config.get_text_config(), model.config):
        cap = getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None)
        if cap and float((found - cap * (plain / cap).tanh()).abs().max()) <= slack:
            return Tiers(cap=float(cap)), completion
    return Tiers(full_logits=True), completion


def _responses_kinds(model: UniversalModel, tiers: Tiers, completion: Completion) -> tuple[Tiers, Probe]:
    """Which kind the tokens of a response have for the class: the one with which its cache agrees."""
    names = dict.fromkeys(name for one in completion.prompts.table.features for name in one.kinds)
    probes = []
    for value in (0, 1) if names else (0,):
        fill = dict.fromkeys(names, value)
        try:
            probe = Probe(completion, own_logprobs(model, model.network, completion, fill))
        except SLIPS:  # not a kind that a response can have
            if not value:
                raise
            continue
        off = _difference(model, lambda: _cached(model, completion, Tiers()), probe)
        probes.append((off, value, probe))
        if off <= (EXACT if model.compute == torch.float32 else ROUNDED):
            break
    _, value, probe = min(probes, key=lambda one: one[:2])
    return replace(tiers, fill=dict.fromkeys(names, value) if value else {}), probe


def _causal(model: UniversalModel, completion: Completion, tiers: Tiers) -> bool:
    """Whether another token in the middle of a response leaves the logits of the tokens before it as they are.

    By how much it changes those after it: with small weights the logits of an encoder hardly differ in either.
    """
    some = completion.select([0])
    column = int(some.length[0]) // 2
    other = completion.ids[completion.ids != some.ids[0, column]][0]
    changed = replace(some, ids=some.ids.index_fill(1, torch.tensor([column]), int(other)))
    own, others = (own_logits(model, model.network, one, tiers.fill)[0] for one in (some, changed))
    moved = (own - others).abs().amax(-1)
    # the last logits before it are those that predict it; the next ones are its own, which follow it most
    before, after = float(moved[: column + 1].max()), float(moved[column + 2 :].max())
    return before <= max(AHEAD[model.compute == torch.float32] * after, NOISE * float(own.abs().max()))


def _scored(model: UniversalModel, completion: Completion, tiers: Tiers) -> Tensor:
    """By the forward that training uses."""
    with torch.no_grad():
        states = padded_states(
            model.forwards, model.network, completion,
            fill=tiers.fill, lengths=tiers.scored, logits=tiers.full_logits,
        )  # fmt: skip
        model.tiers = tiers
        return score(model, model.network, states, completion, temperature=1.0).logprob.cpu()


def _cached(model: UniversalModel, completion: Completion, tiers: Tiers) -> Tensor:
    """Token by token, as decoding does."""
    table, index = completion.prompts.table, completion.prompts.index
    prompts = Conversation.prompts(table)
    groups = model.forwards.collation.groups(prompts, tiers.cached)
    begin: Callable[[Sequence[Conversation]], Any] = partial(Cached.prefilled, model.forwards, model.network)
    if tiers.cacheless:
        begin = partial(Anew, model.forwards, model.network, lengths=tiers.cached, fill=tiers.fill)
    logits: list[Tensor] = [torch.zeros(0)] * len(completion)
    for group in groups:
        rows = [row for row, prompt in enumerate(index.tolist()) if prompt in group]
        with torch.no_grad():
            cached = begin([prompts[prompt] for prompt in group])
            device = cached.logits.device
            cached.select(torch.tensor([group.index(int(index[row])) for row in rows], device=device))
            steps = [cached.logits]
            for column in range(int(completion.length[rows].max()) - 1):
                cached.step(completion.ids[rows, column : column + 1].to(device))
                steps.append(cached.logits)
        for number, row in enumerate(rows):
            logits[row] = torch.stack([step[number] for step in steps[: int(completion.length[row])]])
    return logprobs_of(model, logits, completion)


def _even(model: UniversalModel, probe: Probe, tiers: Tiers, agrees: Callable[..., bool]) -> bool:
    """Whether rows of equal length share forwards and a cache."""
    twins = with_twins(model, probe, tiers.fill)
    if twins is None:
        return False
    alone = replace(tiers, even=True, padded=False)
    return agrees("rows of one length", lambda: _scored(model, twins.completion, alone), twins) and agrees(
        "cache of one length", lambda: _cached(model, twins.completion, alone), twins
    )


def _counts(model: UniversalModel, probe: Probe) -> bool:
    """Whether the cache knows its length."""
    prompt = Conversation.prompts(probe.completion.prompts.table)[0]
    with torch.no_grad():
        cached = Cached.prefilled(model.forwards, model.network, [prompt])
        try:
            return cached.length == len(prompt.ids)
        except SLIPS:
            return False


def _shared(model: UniversalModel, completion: Completion, tiers: Tiers) -> Tensor:
    with torch.no_grad():
        states = shared_states(model.forwards, model.network, completion, lengths=tiers.cached, counted=tiers.counted)
        model.tiers = tiers
        return score(model, model.network, states, completion, temperature=1.0).logprob.cpu()


def _same_gradients(model: UniversalModel, probe: Probe, tiers: Tiers, measured: dict[str, float]) -> bool:
    """Whether gradients through the cache are those of separate forwards, in a few layers' weights."""
    decoder = model.text(model.network)  # of which quantised weights have no gradients
    matrices = [weight for weight in decoder.parameters() if weight.ndim > 1 and weight.dtype.itemsize > 1]
    chosen = list(dict.fromkeys([matrices[0], matrices[len(matrices) // 2], matrices[-1]]))
    weights = torch.randn(int(probe.completion.mask.sum()), generator=torch.Generator().manual_seed(1))

    def gradients(run: Callable[[], Any]) -> list[Tensor]:
        states = run()
        hidden = states.hidden.float()
        total = (hidden.mean(-1) * weights.to(hidden.device)).sum() + hidden[:, 0].sum()
        found = torch.autograd.grad(total, chosen, allow_unused=True)
        return [torch.zeros_like(one) if own is None else own for one, own in zip(chosen, found, strict=True)]

    common = {"forwards": model.forwards, "network": model.network, "completion": probe.completion}
    for weight in chosen:
        weight.requires_grad_(True)
    try:
        apart = gradients(lambda: padded_states(**common, fill=tiers.fill, lengths=tiers.scored, logits=False))
        ours = gradients(lambda: shared_states(**common, lengths=tiers.cached, counted=tiers.counted))
    except SLIPS:
        measured["gradients of shared prompts"] = float("inf")
        return False
    finally:
        for weight in chosen:
            weight.requires_grad_(False)
    largest = max(float(one.abs().max()) for one in apart)
    off = max(float((one - other).abs().max()) for one, other in zip(ours, apart, strict=True)) / max(largest, 1e-30)
    measured["gradients of shared prompts"] = off
    return off <= (STEEP if model.compute == torch.float32 else 10 * STEEP)


def _plan(model: UniversalModel, probe: Probe, tiers: Tiers, agrees: Callable[..., bool]) -> Tiers:
    """Whether the decoder runs under Burnish's plan."""
    decoder = model.text(model.network)
    if not plannable(model, tiers):
        return tiers

    def scored(layout: Layout, completion: Completion) -> Tensor:
        with torch.no_grad():
            found = response_logprobs(model, model.network, completion, temperature=1.0, layout=layout)
        return found.logprob.cpu()

    features = probe.completion.prompts.rows().features
    others = frozenset(name for one in features for name in one.tensors if any(kind in name for kind in MOVING))
    switch(decoder, on=True)
    for unplanned in dict.fromkeys((frozenset[str](), others)):
        some = probe.select([row for row, one in enumerate(features) if not unplanned & one.tensors.keys()])
        model.tiers = found = replace(tiers, packed=True, unplanned=unplanned)
        layouts: tuple[Layout, ...] = ("packed", "shared")
        if all(agrees(f"plan, {layout}", partial(scored, layout, some.completion), some) for layout in layouts):
            plain = found.scale == 1 and found.cap is None
            return replace(found, fast=plain and _decodes(model, some, found))
    switch(decoder, on=False)
    return tiers


def plannable(model: UniversalModel, tiers: Tiers) -> bool:
    """Whether a plan is worth a try; a window has to be shorter than the longest prompt."""
    return not tiers.full_logits and has_plan(model.text(model.network)) and window_of(model.config) <= LONGEST


def _decodes(model: UniversalModel, probe: Probe, tiers: Tiers) -> bool:
    """Whether Burnish's own decoding computes what the class does: its layers are Llama's."""
    prompts = probe.completion.prompts.rows()  # not the table, whose media of other rows would keep it from being tried
    rows, model.tiers = range(len(prompts)), replace(tiers, fast=True)
    try:
        found = decode(model, model.network, prompts, rows, rows, Sampling(max_new_tokens=max(LENGTHS)))
    except SLIPS:
        return False
    expected = own_logprobs(model, model.network, found, tiers.fill)
    return _difference(model, lambda: found.logprob, Probe(found, expected)) <= (
        EXACT if model.compute == torch.float32 else ROUNDED
    )


def _goes_on(model: UniversalModel, completion: Completion, tiers: Tiers, agrees: Callable[..., bool]) -> bool:
    """Whether second turns go on from what was kept of the first, beside conversations of which nothing was kept."""
    model.tiers = replace(tiers, goes_on=True)
    try:
        second, found = _second_turns(model, completion.prompts.rows(), int(completion.ids[0, 0]))
    except SLIPS as error:
        log.info("%s: %s", type(error).__name__, error)
        return False
    expected = own_logprobs(model, model.network, second, tiers.fill)
    return agrees("kept turns", lambda: found, Probe(second, expected))


def _second_turns(model: UniversalModel, opened: Encoded, word: int) -> tuple[Completion, Tensor]:
    """Two turns of each conversation, the second as what the policy chose, and the log-probs [B, T] of its decoding."""
    rows, kept = range(len(opened)), Kept(2**40)
    limits = [LENGTHS[row % len(LENGTHS)] for row in rows]

    def answers(prompts: Encoded, *, last: bool) -> list[tuple[Tensor, Tensor]]:
        turn = Turn(kept, [Going(row, Features.none()) for row in rows], last=last)
        sampling = Sampling(max_new_tokens=max(LENGTHS))
        done = decode(model, model.network, prompts, rows, rows, sampling, limits=limits, turn=turn)
        each = zip(done.ids, done.logprob, done.length.tolist(), strict=True)
        return [(ids[:length], logprob[:length]) for ids, logprob, length in each]

    first = [ids for ids, _ in answers(opened, last=False)]
    kept.drop_others([row for row in rows if row % 4])
    added = [torch.full((1 + row % 3,), word) for row in rows]  # what somebody says between
    turns = [
        Encoded(ids=[own], positions=[torch.arange(len(own)).expand(model.axes, -1)], features=[Features.none()])
        for own in added
    ]
    conversations = [append_turn(opened.select([row]), first[row], turns[row]) for row in rows]
    second = answers(Encoded.cat(conversations), last=True)
    ids = [torch.cat([first[row], added[row], second[row][0]]) for row in rows]
    length = torch.tensor([len(own) for own in ids])
    behind = Completion.of_text(
        Gathered(table=opened, index=torch.arange(len(opened))), pad_sequence(ids, batch_first=True), length,
        axes=model.axes,
    )  # fmt: skip
    start = length - torch.tensor([len(own) for own, _ in second])
    mask = behind.mask & (torch.arange(behind.mask.shape[1]) >= start[:, None])
    found = torch.zeros(mask.shape).masked_scatter(mask, torch.cat([logprob for _, logprob in second]))
    return replace(behind, mask=mask), found


def _difference(model: UniversalModel, run: Callable[[], Tensor], probe: Probe) -> float:
    """In nats: the largest in float32, the mean in half precision, where single tokens round far apart."""
    try:
        found = run()
    except SLIPS as error:  # whatever a class makes of a form that it was not written for
        log.info("%s: %s", type(error).__name__, error)
        return float("inf")
    off = (found - probe.expected).abs()[probe.completion.mask]
    return float(off.max() if model.compute == torch.float32 else off.mean())
