"""States, log-probs and entropies of response tokens, and of no others, by whatever layout of a forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.language.algorithms.base import token_budget_batches
from burnish.language.attention import Plan, Segment
from burnish.language.model.universal import LanguageModel
from burnish.language.routing import Routers, experts_of
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.sequences import Split, chunks
from burnish.types.batch import Gathered, to_device
from burnish.types.completion import Completion, Encoded, Features

Layout = Literal["padded", "packed", "shared"]


@dataclass(frozen=True)
class ResponseStates:
    """The states that predict the R tokens of the policy, in order of rows; of ranks that split sequences the r of this
    one, all R otherwise."""

    hidden: Tensor  # [r, D] last hidden states
    mask: Tensor  # [B, T] bool: the R tokens
    index: Tensor  # [r] long: indices of the states in the sequences of the forward pass, one after the other
    logits: Tensor | None = None  # [r, V] where the head is more than a product
    split: Split = Split()  # of the R states, once they are in the order of ``order``
    order: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))  # [R] those of the first rank first

    def own(self, values: Tensor) -> Tensor:
        """What belongs to the states here, [r, ...], of values [R, ...] on the CPU."""
        return values if self.split.ranks.size == 1 else values[self.order[self.split.own]]

    def all(self, values: Tensor) -> Tensor:
        """Values [R, ...] of all states from those [r, ...] of the states here."""
        if self.split.ranks.size == 1:
            return values
        return self.split.gathered(values).index_select(0, to_device(self.order.argsort(), values.device))

    def shared_out(self, ranks: Ranks) -> ResponseStates:
        """The same where each of some ranks has run all sequences: each has a share of the states, and its gradient."""
        if ranks.size == 1:
            return self
        split = Split(ranks, chunks(len(self.hidden), ranks.size))
        hidden, index = self.hidden[split.own], self.index[split.own]
        logits = None if self.logits is None else self.logits[split.own]
        return ResponseStates(hidden, self.mask, index, logits, split, torch.arange(len(self.hidden)))

    def scatter(self, values: Tensor) -> Tensor:
        """Values [r] of the states here, and those of other ranks, as [B, T] float32, 0 elsewhere."""
        out = torch.zeros(self.mask.shape, dtype=torch.float32, device=values.device)
        return out.masked_scatter(self.mask, self.all(values.float()))


def lay_out(
    prompts: Sequence[int], responses: Sequence[int], owners: Sequence[int], layout: Layout
) -> tuple[Tensor, list[Segment], Tensor]:
    """The sequence of a forward pass. The last token of a response predicts nothing, so it is left out.

    Args:
        prompts: [P] lengths.
        responses: [B] lengths.
        owners: [B] prompt of each response.
        layout: of the forward pass.

    Returns:
        Its tokens [N] long in a table of all prompts and then all responses, its segments, and the indices [R] long of
        the states in it that predict each response token.
    """
    sizes = [*prompts, *responses]
    rows = [range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
    source: list[int] = []
    predicts: list[int] = []
    segments = []
    shared = layout == "shared"
    for prompt in rows[: len(prompts)] if shared else ():
        segments.append(Segment(len(source), len(prompt)))
        source += prompt
    for owner, response in zip(owners, rows[len(prompts) :], strict=True):
        if response:
            start, prompt = len(source), rows[owner]
            first = start if shared else start + len(prompt)
            last = segments[owner].start + len(prompt) - 1 if shared else first - 1  # of the prompt
            predicts += [last, *range(first, first + len(response) - 1)]
            source += response[:-1] if shared else [*prompt, *response[:-1]]
            if len(source) > start:
                segments.append(Segment(start, len(source) - start, prefix=owner if shared else None))
    return torch.tensor(source, dtype=torch.long), segments, torch.tensor(predicts, dtype=torch.long)


def packed_states(
    model: LanguageModel,
    network: nn.Module,
    completion: Completion,
    *,
    layout: Layout | Literal["auto"],
    context: Ranks,
    routers: Routers | None = None,
) -> ResponseStates:
    """States of a micro-batch, in one forward pass of the decoder; see ``response_states``."""
    used, owner = completion.prompts.index.unique(return_inverse=True)
    prompts, responses = completion.prompts.table.select(used), completion.length.tolist()
    chosen: Layout = "shared"  # without a response it contains the prompts, so that there is a graph
    if any(responses):
        chosen = min(WITHOUT_PADDING, key=costs_of(completion, model).__getitem__) if layout == "auto" else layout
    source, segments, predicts = lay_out(prompts.lengths, responses, owner.tolist(), chosen)
    # every token of the micro-batch once, M in all; placeholders are slots for pixels, unless the policy chose them
    real = torch.arange(completion.ids.shape[1]) < completion.length[:, None]
    ids, said = torch.cat([*prompts.ids, completion.ids[real]]), completion.mask[real]
    free = torch.cat([torch.ones(sum(prompts.lengths), dtype=torch.bool), ~said])
    positions = torch.cat([*prompts.positions, completion.positions.transpose(1, 2)[real].T], 1)
    features = [one for one in [*prompts.features, *completion.features] if one.tensors]
    device, decoder, upload = next(network.parameters()).device, model.text(network), model.forwards.upload
    slots = upload(torch.isin(ids, model.placeholders) & free, device)
    embedded = model.forwards.embed(network, decoder, upload(ids, device), slots, features)
    split = Split(context, chunks(len(source), context.size))
    replay: AbstractContextManager[None] = nullcontext()
    if routers is not None:
        experts = experts_of(completion, prompts.lengths, owner.tolist())
        replay = routers.replayed(None if experts is None else to_device(experts[source[split.own]], device))
    source = upload(source[split.own], device)
    positions = to_device(positions, device)[:, source]
    with replay:
        states = model.forwards.packed(decoder, embedded, source, positions, Plan(segments, device=device, split=split))
    places = predicts[said]
    rank = torch.bucketize(places, torch.tensor(split.counts).cumsum(0), right=True)
    parts, order = Split(context, rank.bincount(minlength=context.size).tolist()), rank.argsort(stable=True)
    places = to_device(places[order[parts.own]] - split.own.start, device)
    hidden, mask = states.index_select(0, places), to_device(completion.mask, device)
    return ResponseStates(hidden, mask, places, split=parts, order=order)


def unfolded(completion: Completion) -> Completion:
    """A row per conversation: the tokens that somebody else begins anew, at position 0, are a prompt of their own.

    Args:
        completion: [B]; most have no such row, and are returned as they are.
    """
    within = torch.arange(completion.ids.shape[1]) < completion.length[:, None]
    begins = within & ~completion.mask & (completion.positions.amax(1) == 0)
    if not bool(begins.any()):
        return completion
    prompts = completion.prompts
    table, index, parts = [prompts.table], [], []
    for row, length in enumerate(completion.length.tolist()):
        whole, opening = completion.select([row]), int(prompts.index[row])
        starts, features = [0, *begins[row].nonzero().flatten().tolist()], completion.features[row]
        for start, end in pairwise([*starts, length]):
            first, prompt = start, opening
            own = replace(features, kinds={name: kind[:end] for name, kind in features.kinds.items()}, anew={})
            if start:
                first += int(completion.mask[row, start:end].int().argmax())  # what the policy says to it
                ids, positions = completion.ids[row, start:first], completion.positions[row, :, start:first]
                table.append(Encoded(ids=[ids], positions=[positions], features=[features.anew[start]]))
                prompt, own = len(prompts.table) + len(table) - 2, Features()
            index.append(prompt)
            cut: Any = {name: getattr(whole, name)[..., first:end] for name in ("ids", "mask", "logprob", "positions")}
            parts.append(replace(whole, **cut, length=torch.tensor([end - first]), features=[own]))
    return replace(Completion.cat(parts), prompts=Gathered(table=Encoded.cat(table), index=torch.tensor(index)))


def paired(model: LanguageModel, rows: Completion) -> Completion:
    """Responses, and behind all of them the same ones to what guidance reads beside their prompts, if it does."""
    if model.guidance == 1:
        return rows
    known, index = rows.prompts.table, rows.prompts.index
    prompts = Gathered(table=model.paired(known), index=torch.cat([index, index + len(known)]))
    return replace(rows.select([*range(len(rows))] * 2), prompts=prompts)


WITHOUT_PADDING: tuple[Layout, ...] = ("packed", "shared")


def costs_of(completion: Completion, size: LanguageModel) -> dict[Layout, float]:
    """Multiplications of a forward pass over responses under each layout; their last token is not read.

    Args:
        completion: responses, of which those of one prompt can share it.
        size: of the network.
    """
    owner = completion.prompts.index.tolist()
    prompts = [completion.prompts.table.lengths[prompt] for prompt in owner]
    responses = [max(length - 1, 0) for length in completion.length.tolist()]

    def cost(tokens: float, pairs: float) -> float:
        return float(tokens * size.parameters_per_token + 2 * pairs * size.attention_width)

    lengths = [prompt + response for prompt, response in zip(prompts, responses, strict=True)]
    longest, distinct = max(lengths), dict(zip(owner, prompts, strict=True)).values()
    # causal attention skips half of the pairs; attention to a prefix doesn't
    return {
        "padded": cost(len(lengths) * longest, len(lengths) * longest**2 / 2),
        "packed": cost(sum(lengths), sum(length**2 for length in lengths) / 2) * 1.02,  # for gathering
        "shared": cost(
            sum(distinct) + sum(responses),
            sum(p**2 for p in distinct) / 2 + sum(r * (p + r) for p, r in zip(prompts, responses, strict=True)),
        )
        * 1.04,
    }


def multiplications(completion: Completion, size: LanguageModel, layout: Layout | Literal["auto"]) -> float:
    """Of a forward pass over responses."""
    costs = costs_of(paired(size, unfolded(completion)), size)
    return min(costs[one] for one in WITHOUT_PADDING) if layout == "auto" else costs[layout]


def cheapest_for_all(completion: Completion, size: LanguageModel, *, budget: int, mini_batch: int | None) -> Layout:
    """The layout with the fewest multiplications over all micro-batches of an update.

    Args:
        completion: all responses of the update.
        size: of the network.
        budget: tokens of a micro-batch.
        mini_batch: responses of an optimizer step, which come from all prompts of the update; None is all.
    """
    steps = max(-(-len(completion) // (mini_batch or max(len(completion), 1))), 1)
    totals = dict.fromkeys(WITHOUT_PADDING, 0.0)
    for step in range(steps):
        mini = completion.select(range(step, len(completion), steps))
        for rows in token_budget_batches(mini, budget):
            costs = costs_of(mini.select(rows), size)
            totals = {layout: total + costs[layout] for layout, total in totals.items()}
    return min(totals, key=totals.__getitem__)


@dataclass(frozen=True)
class TokenScores:
    """Per response token; 0 for tokens that the policy didn't choose."""

    logprob: Tensor  # [B, T] float32
    entropy: Tensor  # [B, T] float32, in nats


def response_states(
    model: LanguageModel,
    network: nn.Module,
    completion: Completion,
    *,
    layout: Layout | Literal["auto"] = "auto",
    context: Ranks = SINGLE_RANK,
    routers: Routers | None = None,
) -> ResponseStates:
    """Run a micro-batch; each prompt's media are encoded once, and only states that predict a token are returned.

    A model that can't run a layout takes the nearest that it can.

    Args:
        model: that reads and writes them.
        network: the policy, the reference, or any other network of its class.
        completion: [B] responses.
        layout: of the forward pass, which changes values by rounding only: ``padded``, ``packed``, ``shared``
            (responses share their prompt), or ``auto`` for the cheapest that the model can do.
        context: ranks that run the same micro-batch together: each a chunk of a packed sequence, or all of another.
        routers: of the network, which choose the experts that the sampler chose, where it recorded them.
    """
    rows = paired(model, unfolded(completion))
    if layout != "padded" and model.packs(rows.prompts.rows().features + rows.features):
        states = packed_states(model, network, rows, layout=layout, context=context, routers=routers)
    else:
        alone = model.forwards.responses(network, rows, model.capabilities, single=model.single_forward)
        states = alone.shared_out(context)
    mask = states.mask if rows is completion else to_device(completion.mask, states.hidden.device)
    logits = None if states.logits is None else model.joined(states.logits)
    hidden = model.joined(model.predicting(network, states.hidden))
    return replace(states, hidden=hidden, mask=mask, logits=logits)


def response_logprobs(
    model: LanguageModel,
    network: nn.Module,
    completion: Completion,
    *,
    temperature: float,
    layout: Layout | Literal["auto"] = "auto",
) -> TokenScores:
    """Log-prob and entropy of every token that the policy chose, at the sampling temperature, with gradients.

    Args:
        temperature: of sampling, above 0. Responses sampled greedily are scored at 1.
    """
    return score(
        model, network, response_states(model, network, completion, layout=layout), completion, temperature=temperature
    )


def score(
    model: LanguageModel, network: nn.Module, states: ResponseStates, completion: Completion, *, temperature: float
) -> TokenScores:
    """Log-prob and entropy from states that are computed already, e.g. where a critic shares them."""
    device = states.hidden.device
    ids = to_device(states.own(completion.ids[completion.mask]), device)
    banned = to_device(model.banned, device)
    if states.logits is not None:
        logprob, entropy = scores_of_logits(states.logits, ids, temperature=temperature, banned=banned)
    else:
        head = model.head(network)
        logprob, entropy = chosen_scores(
            states.hidden, head.weight, ids, temperature=temperature / head.scale, banned=banned, cap=head.cap
        )
    return TokenScores(states.scatter(logprob), states.scatter(entropy))


CHUNK = 2**24  # bytes of float32 logits in memory at once, on a CPU: about what its caches hold
GPU_CHUNK = 2**28  # on a GPU, which is idle while a product has few rows: 441 of a vocabulary of 152,064
KEEP = 2**22  # probabilities kept for the backward pass, if all fit; else they are recomputed


@dataclass(frozen=True)
class Head:
    """A language head: logits = scale * (weight @ state), or scale * cap * tanh(weight @ state / cap) with a cap."""

    weight: Tensor  # [V, D]
    scale: float = 1.0
    cap: float | None = None


def rows_at_once(vocabulary: int, device: torch.device) -> int:
    """Tokens whose logits are in memory together."""
    return max((CHUNK if device.type == "cpu" else GPU_CHUNK) // (4 * vocabulary), 1)


class _Scores(torch.autograd.Function):
    """Both outputs by chunks of tokens, with an analytic backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, ids: Tensor, temperature: float, banned: Tensor, cap: float | None
    ) -> tuple[Tensor, Tensor]:
        size = rows_at_once(len(weight), hidden.device)
        keep = ids.numel() * len(weight) <= KEEP and (ctx.needs_input_grad[0] or ctx.needs_input_grad[1])
        logprobs, entropies, normalisers, kept = [], [], [], []
        for chunk, target in zip(hidden.split(size), ids.split(size), strict=True):
            logits = scaled_logits(chunk, weight, temperature, banned, cap)
            normaliser = logits.logsumexp(-1)
            logprobs.append(logits.gather(-1, target[:, None])[:, 0] - normaliser)
            logits -= normaliser[:, None]
            probabilities = logits.exp()
            # clamped, because a banned token gives 0 * -inf
            entropies.append(-logits.clamp_min_(-1e30).mul_(probabilities).sum(-1))
            normalisers.append(normaliser)
            if keep:
                kept.append(probabilities)
        entropy = torch.cat(entropies)
        ctx.save_for_backward(hidden, weight, ids, banned, torch.cat(normalisers), entropy, *kept)
        ctx.temperature, ctx.size, ctx.cap = temperature, size, cap
        ctx.set_materialize_grads(False)  # an entropy that is only logged costs nothing here
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, ids, banned, normaliser, entropy, *kept = ctx.saved_tensors
        by_logprob = torch.zeros_like(entropy) if by_logprob is None else by_logprob
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        to_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        for number, start in enumerate(range(0, len(ids), ctx.size)):
            rows = slice(start, min(start + ctx.size, len(ids)))
            if kept:
                probabilities = kept[number]
            else:
                logits = scaled_logits(hidden[rows], weight, ctx.temperature, banned, ctx.cap)
                probabilities = logits.sub_(normaliser[rows, None]).exp_()
            # d log p(id) = 1[id] - p;  d entropy = -p (log p + entropy)
            if by_entropy is None:
                slope = probabilities * -by_logprob[rows, None]
            else:
                surprise = probabilities.clamp_min(1e-38).log_().add_(entropy[rows, None]).mul_(by_entropy[rows, None])
                slope = surprise.add_(by_logprob[rows, None]).mul_(probabilities).neg_()
            slope.scatter_add_(1, ids[rows, None], by_logprob[rows, None])
            slope = slope.div_(ctx.temperature)
            if ctx.cap is not None:
                capped = scaled_logits(hidden[rows], weight, 1.0, banned[:0], ctx.cap)
                slope *= 1 - (capped / ctx.cap).square()  # d (cap tanh(x / cap)) = 1 - tanh(x / cap)^2
            slope = slope.to(weight.dtype)
            if to_hidden is not None:
                to_hidden[rows] = (slope @ weight).to(hidden.dtype)
            if to_weight is not None:
                to_weight += slope.T @ hidden[rows].to(weight.dtype)
        return to_hidden, None if to_weight is None else to_weight.to(weight.dtype), None, None, None, None


def scaled_logits(
    hidden: Tensor, weight: Tensor, temperature: float, banned: Tensor, cap: float | None = None
) -> Tensor:
    """Logits [N, V] float32 at a temperature; -inf for banned tokens."""
    logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight).float()
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    if temperature != 1:
        logits /= temperature
    if len(banned):
        logits.index_fill_(-1, banned, -torch.inf)
    return logits


def chosen_scores(
    hidden: Tensor, weight: Tensor, ids: Tensor, *, temperature: float, banned: Tensor, cap: float | None = None
) -> tuple[Tensor, Tensor]:
    """Log-prob of chosen tokens, and the entropy of the distributions they were chosen from.

    Memory doesn't grow with tokens x vocabulary: logits are computed in chunks, and again in the backward pass.

    Args:
        hidden: [N, D] state that predicts each token.
        weight: [V, D] of the language head.
        ids: [N] long; none of them banned.
        temperature: divides the logits, as in sampling; above 0.
        banned: [K] long, tokens without probability.
        cap: of the logits before they are divided: cap * tanh(logits / cap).

    Returns:
        Log-prob [N] and entropy [N] in nats, float32.
    """
    if not len(ids):
        empty = hidden.float().sum(-1)  # keeps the graph
        return empty, empty
    logprob, entropy = _Scores.apply(hidden, weight, ids, temperature, banned, cap)  # type: ignore[no-untyped-call]
    return logprob, entropy


def scores_of_logits(logits: Tensor, ids: Tensor, *, temperature: float, banned: Tensor) -> tuple[Tensor, Tensor]:
    """The same from logits [N, V], for models whose head is more than a product."""
    scaled = logits.float() / temperature
    if len(banned):
        scaled = scaled.index_fill(-1, banned, -torch.inf)
    logprobs = scaled.log_softmax(-1)
    chosen = logprobs.gather(-1, ids[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs.clamp_min(-1e30)).sum(-1)
