"""How rows are decoded: by Burnish's own layers and cache, or by their class's own forward.

Burnish's decoder gives rows that wait the place of rows that end at once. A class has its own cache, or none where that
gives other numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial as bind
from itertools import accumulate, groupby
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.generation.utils import ALL_CACHE_NAMES

from burnish.language.attention import Plan, Segment
from burnish.language.layers import Before, Cache, Layers
from burnish.language.logprobs import scaled_logits
from burnish.language.model.forwards import Inputs, caching, outside_inference
from burnish.language.model.universal import LanguageModel
from burnish.language.routing import Routers
from burnish.language.sampling import IDLE, DecodingRows, Ended, Live, Sampling, Turn
from burnish.types.batch import to_device
from burnish.types.completion import Completion, Encoded, Features, PartialResponse

PREFILL = 8192  # prompt tokens per forward pass


def decode(
    model: LanguageModel,
    network: nn.Module,
    prompts: Encoded,
    index: Sequence[int],
    keys: Sequence[int],
    sampling: Sampling,
    *,
    batch_size: int = 256,
    limits: Sequence[int] | None = None,
    check_cancelled: Callable[[], None] = lambda: None,
    on_ended: Ended | None = None,
    turn: Turn | None = None,
    fused: list[Layers] | None = None,
    partial: Sequence[PartialResponse] = (),
    routers: Routers | None = None,
) -> Completion:
    """Sample one response per row.

    A response depends on its prompt, its key and the weights, not on the rest of the batch: each token is chosen by a
    uniform number that is a function of the key and the token's index.

    Args:
        model: that reads and writes them.
        network: whose weights sample.
        prompts: [P] prompts; each is prefilled once for all of its responses.
        index: [B] prompt of each row; rows of one prompt should be adjacent.
        keys: [B] 63-bit numbers (:func:`burnish.utils.random.key` of seed, purpose, update, prompt and sample).
        sampling: temperature, filters and limits.
        batch_size: rows that are decoded at once; changes speed and memory only.
        limits: [B] largest length of each response, if not ``sampling.max_new_tokens``. One that stops there and goes
            on later, as ``partial``, draws what it would have drawn.
        check_cancelled: called before every token; it raises to stop.
        on_ended: called with rows as soon as they end, each once, while the others go on.
        turn: which conversations the rows are, so that one computes what was said since its last turn alone.
        fused: what the first of several calls with the same weights keeps for the others.
        partial: [B] what there is of the responses, which is read with their prompts; nothing if none are given.
        routers: of the network, whose choices are recorded; only where Burnish's own layers decode.

    Returns:
        Responses in the order of the rows; the id that ended one is its last token.
    """
    with torch.inference_mode():
        rows = DecodingRows(
            model, prompts, index, keys, sampling, limits, next(network.parameters()).device,
            on_ended=on_ended, partial=partial,
        )  # fmt: skip
        if rows.waiting:
            known = model.capabilities
            if known.fast and (not known.packed or model.packs(rows.prompts.features)):
                FastDecoder(model, network, rows, batch_size, turn, [] if fused is None else fused, routers).run(
                    check_cancelled
                )
            else:
                decode_by_class(model, network, rows, batch_size, check_cancelled)
    return rows.completion()


class Replays:
    """Functions over buffers at fixed addresses: on a GPU each becomes a CUDA graph for every shape that returns."""

    def __init__(self, *, captures: bool) -> None:
        self.captures = captures
        self.graphs: dict[tuple[Any, ...], torch.cuda.CUDAGraph | None] = {}
        self.pool: Any = None  # of memory that they share, as one runs after the other

    def __call__(self, function: Callable[[], None], *shape: int) -> None:
        """Run one; ``shape`` is all that can be otherwise than the last time."""
        key = (function.__name__, *shape)
        if not self.captures or key not in self.graphs:  # not every shape returns, and libraries set themselves up
            self.graphs[key] = None
            function()
            return
        graph = self.graphs[key]
        if graph is None:
            graph = self.graphs[key] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                function()
            self.pool = graph.pool()
        graph.replay()


class FastDecoder:
    """Prefills prompts under Burnish's plan, and runs a token per row and step."""

    def __init__(
        self, model: LanguageModel, network: nn.Module, rows: DecodingRows, batch_size: int, turn: Turn | None,
        fused: list[Layers], routers: Routers | None = None,
    ) -> None:  # fmt: skip
        """See ``decode``."""
        self.routers = routers
        self.model, self.network, self.rows, self.turn = model, network, rows, turn
        self.prompts = model.paired(rows.prompts)
        self.members = model.members
        self.device = rows.device
        self.head = model.head(network)
        if not fused:
            fused.append(Layers(model.text(network), self.head.weight, compute=model.compute))
        self.layers = fused[0]
        self.prefilled: dict[int, tuple[Tensor, Tensor]] = {}  # by prompt: last state, keys and values
        last = rows.longest_after(self.prompts.next_position)
        positions = (torch.arange(last + 2, device=self.device) - 1).clamp_min(0)[None]
        # of the position before each: that of the token chosen last, where the next token's is known
        self.rotations = self.layers.rotation(positions.expand(model.axes, 1, -1) if model.axes > 1 else positions)
        capacity, width = min(batch_size, len(rows.waiting)), len(model.text(network).norm.weight)
        self.live = Live(capacity, self.device)
        capacity *= self.members
        # that predict a token
        self.states = torch.zeros(capacity, width, dtype=self.head.weight.dtype, device=self.device)
        self.cache = Cache(
            layers=len(self.layers.layers),
            rows=capacity,
            pairs=self.layers.pairs,
            longest=rows.longest_after(self.prompts.lengths),
            width=self.layers.width,
            dtype=self.layers.compute,
            device=self.device,
        )
        self.replays = Replays(captures=self.device.type == "cuda" and self.layers.static)

    def run(self, check_cancelled: Callable[[], None]) -> None:
        """Decode all rows."""
        rows, live, cache = self.rows, self.live, self.cache
        waiting = self._admit(rows.waiting)
        while live.size:
            check_cancelled()
            self.replays(self._choose, live.size)
            full = cache.end == cache.limit  # rows are moved before the next token
            done = rows.look(live, now=full)
            compact = done >= IDLE * live.size or (done > 0 and full)
            if compact:
                self._keep()
                kept = [self.members * row + n for row in rows.drop_done(live).tolist() for n in range(self.members)]
                cache.keep(kept, len(waiting) * self.members)
            if live.size:
                cache.advance()
                self.replays(self._step, live.size, cache.columns)
            if compact and waiting:
                waiting = self._admit(waiting)

    def _choose(self) -> None:
        states, none, head = self.states[: self.live.size * self.members], self.rows.banned[:0], self.head
        if self.members > 1:  # first all that are asked for something
            states = states.unflatten(0, (-1, self.members)).transpose(0, 1).flatten(0, 1)
        states = self.model.joined(self.model.predicting(self.network, states))
        self.rows.next_tokens(scaled_logits(states, head.weight, 1 / head.scale, none, head.cap), self.live)

    def _step(self) -> None:
        position, token = self.live.position, self.live.token
        if self.members > 1:
            position, token = (one.repeat_interleave(self.members) for one in (position, token))
        rotation = self.rotations.index_select(0, position)
        step = bind(self.layers.step, self.model.embed(self.network, token), rotation, self.cache)
        if self.routers is None:
            self.states[: len(token)] = step()
            return
        self.states[: self.live.size], experts = self.routers.recorded(step)
        self.rows.routed(self.live, torch.stack(experts, 1))

    def _admit(self, waiting: list[int]) -> list[int]:
        """Have rows decoded for which there is room, with the states that predict their first tokens; the others.

        Keys and values of prompts are held beside the cache only while rows of this batch, or waiting ones, need them.
        """
        free = self.cache.rows // self.members - self.live.size
        batch, waiting = waiting[:free], waiting[free:]
        groups = [(prompt, len(list(rows))) for prompt, rows in groupby(self.rows.index[row] for row in batch)]
        longest = max(self.prompts.lengths[prompt] for prompt, _ in groups)
        further = {self.rows.index[row] for row in waiting}
        last = {prompt: number for number, (prompt, _) in enumerate(groups)}
        start = self.live.size * self.members
        prefill = self._prefill if self.model.capabilities.packed else self._prefill_by_class
        for number, (prompt, count) in enumerate(groups):
            members = self._members(prompt)
            while not self.prefilled.keys() >= set(members):
                prefill(self._pack(one for later, _ in groups[number:] for one in self._members(later)))
            states, cached = zip(*map(self.prefilled.__getitem__, members), strict=True)
            self.cache.enter(cached, count, longest)
            for place, state in enumerate(states):
                self.states[start + place : start + count * self.members : self.members] = state
            start += count * self.members
            if number == last[prompt] and prompt not in further:
                for one in members:
                    del self.prefilled[one]
        # copied where it is a slice, which would keep all prompts of its forward pass
        self.prefilled = {prompt: (state, cached.contiguous()) for prompt, (state, cached) in self.prefilled.items()}
        self.rows.enter(batch, self.live)
        return waiting

    def _members(self, prompt: int) -> Sequence[int]:
        """The prompt, and the one that guidance reads beside it, if any."""
        return range(prompt, len(self.prompts), len(self.rows.prompts))

    def _keep(self) -> None:
        """Keep what rows that are done have computed, for their next turn."""
        turn, prompts, live = self.turn, self.prompts, self.live
        if turn is None or not turn.most or not self.model.keeps_turns:
            return
        column = self.layers.compute.itemsize * 2 * len(self.layers.layers) * self.layers.pairs * self.layers.width
        for place in live.done.nonzero().flatten().tolist():
            row, count = int(live.row[place]), int(live.count[place])
            prompt = self.rows.index[row]
            columns = prompts.lengths[prompt] + count - 1  # nothing has read the last token
            held = sum(past.cached.nbytes for past in turn.rows if past.cached is not None)
            if held + columns * column <= turn.most:
                past = turn.rows[row]
                past.ids = torch.cat([prompts.ids[prompt], self.rows.ids[row, : count - 1].cpu()])
                past.cached = self.cache.read(place, columns)

    def _begun(self, prompt: int) -> tuple[Tensor | None, Features]:
        """Keys and values of the beginning of a prompt, if they were kept, and the media of the rest."""
        turn, features = self.turn, self.prompts.features[prompt]
        if turn is None:
            return None, features
        past = turn.rows[self.rows.index.index(prompt)]
        cached = past.take(self.prompts.ids[prompt])
        return cached, features if cached is None else past.added

    def _pack(self, prompts: Iterable[int]) -> list[int]:
        """The first of the prompts that are still to be computed: as many as a forward takes."""
        rest = list(dict.fromkeys(prompt for prompt in prompts if prompt not in self.prefilled))
        ends = accumulate(self.prompts.lengths[prompt] for prompt in rest)
        return [prompt for prompt, end in zip(rest, ends, strict=True) if end <= PREFILL] or rest[:1]

    def _prefill_by_class(self, batch: list[int]) -> None:
        """The same by the class's own forward, padded on the left: where it attends in another way than a plan can."""
        forwards, known = self.model.forwards, self.model.capabilities
        prompts = self.prompts.select(batch)
        for group in forwards.collation.groups(prompts, together=known.cache == "padded", mixes=known.mixes):
            inputs = forwards.inputs(self.network, prompts.select(group), side="left")
            with outside_inference(), caching(self.network):
                given = {"use_cache": True, "past_key_values": DynamicCache()}
                out, states = forwards.call(self.network, inputs | given, logits="last")
            for place, number in enumerate(group):
                own = slice(-prompts.lengths[number], None)
                pairs = [(one.keys[place, :, own], one.values[place, :, own]) for one in out.past_key_values.layers]
                cached = torch.stack([torch.stack(pair) for pair in pairs]).to(self.layers.compute)
                self.prefilled[batch[number]] = states[place, -1].to(self.states.dtype), cached

    def _prefill(self, batch: list[int]) -> None:
        """Compute the last state, keys and values of prompts in one forward pass."""
        chosen = self.prompts.select(batch)
        begun = [self._begun(prompt) for prompt in batch]
        skipped = [0 if cached is None else cached.shape[3] for cached, _ in begun]
        ids = torch.cat([own[n:] for own, n in zip(chosen.ids, skipped, strict=True)])
        decoder, forwards = self.model.text(self.network), self.model.forwards
        slots = forwards.upload(torch.isin(ids, self.model.placeholders), self.device)
        features = [own for _, own in begun if own.tensors]
        with outside_inference():
            embedded = forwards.embed(self.network, decoder, forwards.upload(ids, self.device), slots, features)
        positions = torch.cat([own[:, n:] for own, n in zip(chosen.positions, skipped, strict=True)], 1)
        before = Before.of([cached for cached, _ in begun], chosen.lengths, self.device)
        starts = accumulate(chosen.lengths, initial=0)
        segments = [Segment(start, length) for start, length in zip(starts, chosen.lengths, strict=False)]
        plan = Plan(segments, device=self.device)
        positions = to_device(positions[:, None] if self.model.axes > 1 else positions, self.device)
        rest = [length - n for length, n in zip(chosen.lengths, skipped, strict=True)]
        last = to_device(torch.tensor(rest).cumsum(0) - 1, self.device)
        prefill = bind(
            self.layers.prefill, embedded.tokens, positions, plan, embedded.slots, embedded.deep, last, before
        )
        if self.routers is None:
            x, cached = prefill()
        else:
            (x, cached), experts = self.routers.recorded(prefill)
            self._routed(batch, segments, experts, last)
        for number, (prompt, segment) in enumerate(zip(batch, segments, strict=True)):
            own = slice(segment.start, segment.start + segment.length)
            self.prefilled[prompt] = x[number], cached[..., own, :]

    def _routed(self, batch: Sequence[int], segments: Sequence[Segment], experts: list[Tensor], last: Tensor) -> None:
        """Note the experts of prompts by layer; the last layer reads their last tokens alone."""
        count = sum(segment.length for segment in segments)
        table = experts[0].new_full((count, len(experts), experts[0].shape[1]), -1)
        for layer, chosen in enumerate(experts):
            table[slice(None) if len(chosen) == count else last, layer] = chosen
        for prompt, segment in zip(batch, segments, strict=True):
            self.rows.asked_experts[prompt] = table[segment.start : segment.start + segment.length]


# prompts share it, padded on the left; one has it; each token is read anew
CacheKind = Literal["padded", "alone", "none"]


class Cached:
    """Rows that share a cache: prompts first, then tokens of responses. Each ends at the last column.

    Without a cache each token is computed with all that stand before it, in rows of one prompt without media.
    """

    logits: Tensor  # [B, V] of the last token of each row

    def __init__(self, model: LanguageModel, network: Any, prompts: Encoded) -> None:
        """Run prompts."""
        self.forwards, self.network = model.forwards, network
        inputs = self.forwards.inputs(network, prompts, side="left")
        self.ids: Tensor = inputs.pop("input_ids")  # [B, T] that were run
        self.caches = model.capabilities.cache != "none"
        self.arguments = inputs | {"use_cache": self.caches}  # of the next forward, beside them
        # an empty one, as ``generate`` makes it; else the class does
        if self.caches and network._supports_default_dynamic_cache():
            name = "cache_params" if "cache_params" in self.forwards.accepted else "past_key_values"
            self.arguments[name] = DynamicCache(config=network.config.get_text_config(decoder=True))
        self._run(is_first_iteration=True)
        kept = {"attention_mask", "position_ids", "use_cache", *ALL_CACHE_NAMES}
        joins = self.forwards.collation
        aligned = {name for name in joins.rows | joins.per_token if name in inputs}
        kinds = {name for features in prompts.features for name in features.kinds}
        self.arguments = {name: value for name, value in self.arguments.items() if name in kept | aligned | kinds}

    def select(self, rows: Tensor) -> None:
        """Go on with these rows in this order; a row may be taken several times."""
        self.ids, self.logits = self.ids.index_select(0, rows), self.logits.index_select(0, rows)
        for name, value in self.arguments.items():
            if name in ALL_CACHE_NAMES:
                value.reorder_cache(rows)
            elif isinstance(value, Tensor):
                axis = 1 if name == "position_ids" and value.ndim == 3 else 0
                self.arguments[name] = value.index_select(axis, rows)

    def step(self, tokens: Tensor) -> None:
        """Run a further token [B, 1] of each row."""
        self.ids = torch.cat([self.ids, tokens], 1)
        self._run(next_sequence_length=1 if self.caches else None)

    def _run(self, **more: Any) -> None:
        inputs = self.network.prepare_inputs_for_generation(self.ids, **more, **self.arguments)
        out, _ = self.forwards.call(self.network, inputs, logits="last")
        self.logits = out.logits[:, -1].float()
        self.arguments = further(self.network, out, self.arguments)


def further(network: Any, out: Any, arguments: Inputs) -> Inputs:
    """Arguments of the next forward after a token was added, by the class's own rule."""
    found: Inputs = network._update_model_kwargs_for_generation(out, dict(arguments), is_encoder_decoder=False)
    return found


def decode_by_class(
    model: LanguageModel, network: Any, rows: DecodingRows, batch_size: int, check_cancelled: Callable[[], None]
) -> None:
    """Decode rows by the forward of their class, batch by batch; those that have ended are dropped from it."""
    prompts, index, known = rows.prompts, rows.index, model.capabilities
    with caching(network):
        for start in range(0, len(rows.waiting), batch_size):
            some = rows.waiting[start : start + batch_size]
            needed = list(dict.fromkeys(index[row] for row in some))
            alike = prompts.select(needed)
            for group in model.forwards.collation.groups(alike, together=known.cache == "padded", mixes=known.mixes):
                place = {needed[number]: n for n, number in enumerate(group)}
                batch = [row for row in some if index[row] in place]
                with outside_inference():
                    cached = Cached(model, network, model.paired(alike.select(group)))
                    own = model.forwards.upload(torch.tensor([place[index[row]] for row in batch]), rows.device)
                    cached.select(_with_members(own, model.members, len(group)))
                _decode(cached, rows, batch, check_cancelled)


def _with_members(rows: Tensor, members: int, count: int) -> Tensor:
    """Places of rows, and behind them those of what guidance reads beside each of ``count``."""
    return torch.cat([rows + count * number for number in range(members)])


def _decode(cached: Cached, rows: DecodingRows, batch: list[int], check_cancelled: Callable[[], None]) -> None:
    model = rows.model
    live = Live(len(batch), rows.device)
    rows.enter(batch, live)
    while True:
        check_cancelled()
        count = live.size
        rows.next_tokens(model.joined(cached.logits).clone(), live)
        if rows.look(live) >= IDLE * live.size:
            unfinished = rows.drop_done(live)
            if not live.size:
                return
            with outside_inference():
                kept = model.forwards.upload(unfinished.cpu(), rows.device)  # else masks are read for every token
                cached.select(_with_members(kept, model.members, count))
        with outside_inference():
            cached.step(torch.cat([live.token[:, None]] * model.members))
