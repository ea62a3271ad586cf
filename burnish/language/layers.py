"""The decoder's layers for sampling: fused weights, a preallocated cache, one token per row and step.

They compute what transformers' own layers compute (a test holds them to 1e-5), without their overhead of modules, masks
and a cache that grows by copying. In half precision they also round where transformers rounds, so that sampler and
trainer differ by no more than two forward passes of transformers do.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.language.attention import Plan, attend, window_of
from burnish.language.model.forwards import outside_inference
from burnish.types.batch import to_device
from burnish.utils.weights import is_quantized

BLOCK = 64  # columns that memory grows by at least, and by a quarter of what there is
ALIGNED = 8  # columns that a kernel of a GPU takes together
SLACK = 16  # columns at least that rows may move along before they are moved back


def most_columns(longest: int) -> int:
    """That there is ever memory for, where the longest row has as many."""
    return -(-(longest + max(longest // 8, SLACK)) // ALIGNED) * ALIGNED


def grown(held: int, needed: int, limit: int) -> int:
    """Columns that there is memory for, when those held are fewer than those needed."""
    return min(-(-max(needed, held + max(BLOCK, held // 4)) // ALIGNED) * ALIGNED, limit)


class Cache:
    """Active rows come first; each begins at its own column, all have their next token at the same, and a mask hides
    the columns before a row's beginning and those to come.

    Keys are rotated already, so a row may begin at any column. Memory is one tensor per layer. It grows with the
    columns in use, in few steps, a layer at a time, and only for the rows that are still to come: in between a token
    is written and read at the same addresses, in tensors of the same shape. On a CPU
    columns that no row uses are not read.
    """

    def __init__(
        self, *, layers: int, rows: int, pairs: int, longest: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        """Make an empty one.

        Args:
            layers: of the decoder.
            rows: at most, at once.
            pairs: key-value heads.
            longest: columns of the longest row.
            width: of a head.
            dtype: of keys and values.
            device: where they lie.
        """
        self.rows, self.limit, self.cuts = rows, most_columns(longest), device.type == "cpu"
        self.memory = [torch.zeros(2, rows, pairs, 0, width, dtype=dtype, device=device) for _ in range(layers)]
        self.hidden = torch.full((rows, 1, self.limit), -torch.inf, dtype=dtype, device=device)  # 0 where a row has one
        self.column = torch.zeros(1, dtype=torch.long, device=device)  # of the next token
        self.begin: list[int] = []
        self.end = 0

    @property
    def columns(self) -> int:
        """That there is memory for."""
        return self.memory[0].shape[3]

    @property
    def seen(self) -> slice:
        """Columns that a step reads."""
        return slice(min(self.begin), self.end) if self.cuts else slice(0, self.columns)

    def enter(self, cached: Sequence[Tensor], count: int, longest: int) -> None:
        """Add rows.

        Args:
            cached: keys and values [layers, 2, K, L, W] that they begin with; of several the rows take turns.
            count: of rows for each of these.
            longest: columns of the longest prompt that will enter before the next token.
        """
        if longest > self.end:
            self._shift(longest)
        self._reserve(self.end)
        first, kinds, start = len(self.begin), len(cached), self.end - cached[0].shape[3]
        rows = slice(first, first + count * kinds)
        for place, prompt in enumerate(cached):
            own = slice(first + place, rows.stop, kinds)
            for layer, values in zip(self.memory, prompt, strict=True):
                layer[:, own, :, start : self.end] = values[:, None]
        self.hidden[rows] = -torch.inf
        self.hidden[rows, :, start : self.end] = 0
        self.begin += [start] * (count * kinds)

    def keep(self, rows: Sequence[int], waiting: int = 0) -> None:
        """Drop all rows but these.

        Args:
            rows: in ascending order; they move to the front.
            waiting: rows that may still enter: memory need not grow for more than these.
        """
        first = next((new for new, old in enumerate(rows) if new != old), len(rows))
        used = slice(min((self.begin[row] for row in rows), default=self.end), self.end)
        if first < len(rows):
            index = torch.tensor(rows[first:], dtype=torch.long, device=self.hidden.device)
            for layer in self.memory:  # one after the other, so that only one is there twice
                layer[:, first : len(rows), :, used] = layer[..., used, :].index_select(1, index)
            self.hidden[first : len(rows)] = self.hidden.index_select(0, index)
        self.begin = [self.begin[row] for row in rows]
        self.rows = min(self.rows, len(rows) + waiting)

    def read(self, row: int, columns: int) -> Tensor:
        """A copy of the keys and values [layers, 2, K, columns, W] that a row begins with."""
        first = self.begin[row]
        return torch.stack([layer[:, row, :, first : first + columns] for layer in self.memory])

    def advance(self) -> None:
        """Add a column for the next token of every row."""
        if self.end == self.limit:
            self._shift(0)
        self.column.fill_(self.end)
        self.hidden[: len(self.begin), :, self.end] = 0
        self.end += 1
        self._reserve(self.end)

    def _reserve(self, columns: int) -> None:
        """Have memory for as many columns."""
        if columns <= self.columns:
            return
        held = self.columns
        for number, old in enumerate(self.memory):
            # zeros: a column that a row doesn't use is multiplied with a weight of 0, which doesn't hide NaN
            new = old.new_zeros(2, self.rows, old.shape[2], grown(held, columns, self.limit), old.shape[4])
            new[..., :held, :] = old[:, : self.rows]
            self.memory[number] = new

    def _shift(self, least: int) -> None:
        """Move the rows left, so that the longest begins at the first column; they end at column ``least`` or later."""
        start = min(self.begin, default=self.end)
        used = self.end - start
        more = max(least - used, 0)
        assert used + more < self.limit, "the cache is too short for a prompt with its response"
        self._reserve(used + more)
        for tensor in (*self.memory, self.hidden[..., None]):
            tensor[..., more : more + used, :] = tensor[..., start : self.end, :].clone()
        self.hidden[..., :more] = -torch.inf
        self.hidden[..., more + used :] = -torch.inf
        self.begin = [begin - start + more for begin in self.begin]
        self.end = more + used


@dataclass(frozen=True)
class Linear:
    """Linear layers of the same input, fused."""

    weight: Tensor  # [O, D]
    bias: Tensor | None  # [O]
    adapter: tuple[Tensor, Tensor] | None  # of LoRA: see ``_adapter``

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [N, O] of inputs [N, D]."""
        if self.bias is None or x.dtype != torch.float32:
            out = F.linear(x, self.weight, self.bias)
        else:
            out = F.linear(x, self.weight).add_(self.bias)  # faster on a CPU than a product with a bias
        # rounded where the trainer's layers round: see ``burnish.models.linear``
        return out if self.adapter is None else torch.addmm(out, F.linear(x, self.adapter[0]), self.adapter[1])


@dataclass(frozen=True)
class Called:
    """Linear layers of the same input that run as they are: quantised weights can't be joined, nor DoRA's gains."""

    linears: Sequence[Any]
    dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs [N, O] of inputs [N, D]."""
        with torch.autocast(x.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return torch.cat([linear(x) for linear in self.linears], -1).to(self.dtype)


def fused(linears: Sequence[Any], dtype: torch.dtype) -> Linear | Called:
    """Linear layers of the same input as one, if their weights can be joined."""
    adapters = [(linear, name) for linear in linears for name in _active_adapters(linear)]
    scaled = any(name in linear.lora_magnitude_vector for linear, name in adapters)
    if scaled or any(is_quantized(base(linear)) for linear in linears):
        return Called(linears, dtype)
    bias = None
    if any(linear.bias is not None for linear in linears):
        each = [p.weight.new_zeros(len(p.weight)) if p.bias is None else p.bias for p in linears]
        bias = torch.cat(each).to(dtype)
    weights = [base(linear).to(dtype) for linear in linears]
    weight = torch.cat(weights) if len(weights) > 1 else weights[0]
    return Linear(weight, bias, _adapter(linears, dtype) if adapters else None)


@dataclass(frozen=True)
class Norm:
    """RMS norm over the last axis: Llama's, which rounds before it multiplies, or Gemma's, whose gain is 1 + weight."""

    gain: Tensor  # [D], or [H, D] of heads
    eps: float
    beside_one: bool

    def __call__(self, x: Tensor) -> Tensor:
        """Of x [.., D]."""
        if self.beside_one:
            return F.rms_norm(x.float(), x.shape[-1:], None, self.eps).mul_(self.gain).type_as(x)
        return self.gain * F.rms_norm(x, x.shape[-1:], None, self.eps)


@dataclass(frozen=True)
class Layer:
    """Weights of one layer."""

    attention_norm: Norm
    qkv: Linear | Called  # [D] to [(H + 2 K) W]
    qk_norm: Norm | None  # [H + K, W]
    out: Linear | Called  # [H W] to [D]
    mlp_norm: Norm
    gate_up: Linear | Called | None  # [D] to [2 I]; None: the module computes it
    down: Linear | Called | None  # [I] to [D]
    after: tuple[Norm, Norm] | None  # of what attention and MLP add to the states, in Gemma
    mlp: Any
    attention: nn.Module
    window: int | None  # tokens of a sliding window, the current one included; None: full attention
    rotation: int  # which one turns its queries and keys


@dataclass(frozen=True)
class Before:
    """What was computed of prompts of a packed sequence in an earlier turn."""

    cached: list[Tensor]  # of each that has some: keys and values [layers, 2, K, L, W]
    old: Tensor  # [O] long, their places in the sequence
    new: Tensor  # [N] long, the other places

    @classmethod
    def of(cls, cached: Sequence[Tensor | None], lengths: Sequence[int], device: torch.device) -> Before | None:
        """For prompts of these lengths, one after the other; None where nothing was computed of any."""
        held = [one for one in cached if one is not None]
        if not held:
            return None
        known = [
            torch.arange(length) < (0 if one is None else one.shape[3])
            for one, length in zip(cached, lengths, strict=True)
        ]
        mask = torch.cat(known)
        return cls(held, *(to_device(places.nonzero().flatten(), device) for places in (mask, ~mask)))

    def completed(self, query: Tensor, new: Tensor, memory: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [1, H, M, W], keys and values [1, K, M, W] of the whole sequence; old queries are 0, and not read.

        Args:
            query: [1, H, N, W].
            new: keys and values [2, K, N, W].
            memory: [2, K, M, W] that is filled.
            layer: its number.
        """
        memory[:, :, self.new] = new.to(memory.dtype)
        memory[:, :, self.old] = torch.cat([one[layer] for one in self.cached], 2)
        places = query.new_zeros(*query.shape[:2], memory.shape[2], query.shape[3])
        return places.index_copy(2, self.new, query), memory[:1], memory[1:]


class Layers:
    """All layers, the final norm and the language head, in the precision of the forward pass.

    Shapes: H query heads, K key-value heads, head width W, hidden width D.
    """

    def __init__(self, decoder: Any, head: Tensor, *, compute: torch.dtype) -> None:
        config = decoder.config
        self.compute = compute if compute != torch.float32 else head.dtype
        self.heads, self.pairs = config.num_attention_heads, config.num_key_value_heads
        self.width = decoder.layers[0].self_attn.o_proj.in_features // self.heads
        self.scale = decoder.layers[0].self_attn.scaling
        self.head, self.rotary, self.eps = head, decoder.rotary_emb, config.rms_norm_eps
        weight = decoder.norm.weight
        with outside_inference():
            self.beside_one = float((decoder.norm(torch.ones_like(weight)) - weight).mean()) > 0.5
        self.dtype = weight.dtype  # of what turns queries and keys
        by_kind = "layer_type" in inspect.signature(self.rotary.forward).parameters
        self.kinds = list(dict.fromkeys(config.layer_types)) if by_kind else [None]
        self.norm = self._norm(decoder.norm)
        self.layers = [self._layer(layer) for layer in decoder.layers]

    @property
    def static(self) -> bool:
        """Whether nothing depends on values: experts and quantised layers may wait for the device, or make tensors."""
        return all(isinstance(one, Linear) for x in self.layers for one in (x.qkv, x.out, x.gate_up, x.down))

    def _norm(self, *norms: Any, heads: Sequence[int] = ()) -> Norm:
        """One or, with the heads that each is for, several of them as one."""
        gains = [1 + norm.weight.float() if self.beside_one else norm.weight for norm in norms]
        if heads:
            gains = [torch.cat([gain.expand(count, -1) for gain, count in zip(gains, heads, strict=True)])]
        return Norm(gains[0], self.eps, self.beside_one)

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        plain, normed = hasattr(mlp, "gate_proj"), hasattr(attention, "q_norm")
        after = hasattr(layer, "post_feedforward_layernorm")
        return Layer(
            attention_norm=self._norm(layer.input_layernorm),
            qkv=fused([attention.q_proj, attention.k_proj, attention.v_proj], self.compute),
            qk_norm=self._norm(attention.q_norm, attention.k_norm, heads=(self.heads, self.pairs)) if normed else None,
            out=fused([attention.o_proj], self.compute),
            mlp_norm=self._norm(layer.pre_feedforward_layernorm if after else layer.post_attention_layernorm),
            gate_up=fused([mlp.gate_proj, mlp.up_proj], self.compute) if plain else None,
            down=fused([mlp.down_proj], self.compute) if plain else None,
            after=(self._norm(layer.post_attention_layernorm), self._norm(layer.post_feedforward_layernorm))
            if after
            else None,
            mlp=mlp,
            attention=attention,
            window=window_of(attention),
            rotation=self.kinds.index(attention.layer_type) if self.kinds != [None] else 0,
        )

    def rotation(self, positions: Tensor) -> Tensor:
        """Cosine and signed sine [N, 2 W] of positions [A, 1, N] or [1, N]; [N, 4 W] where layers turn in two ways."""
        half, found = self.width // 2, []
        for kind in self.kinds:
            given = [] if kind is None else [kind]
            cos, sin = self.rotary(positions.new_zeros(1, dtype=torch.float32), positions, *given)
            found += [cos, -sin[..., :half], sin[..., half:]]
        return torch.cat(found, -1)[0].to(self.dtype)

    def _attention_input(self, layer: Layer, x: Tensor, factors: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [N, H, W], rotated keys [N, K, W] and values [N, K, W]."""
        joined = layer.qkv(layer.attention_norm(x).to(self.compute))
        qk, values = joined.view(len(x), -1, self.width).split([self.heads + self.pairs, self.pairs], 1)
        if layer.qk_norm is not None:
            qk = layer.qk_norm(qk)
        cos, sin = factors[2 * layer.rotation], factors[2 * layer.rotation + 1]
        swapped = qk.roll(self.width // 2, -1)
        if self.compute == torch.float32:
            qk = (qk * cos).addcmul_(swapped, sin)
        else:
            qk = (qk * cos + swapped * sin).to(self.compute)
        q, k = qk.split([self.heads, self.pairs], 1)
        return q, k, values

    def _rest(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        """The rest of a layer after attention [N, H W]."""
        added = layer.out(attended)
        x = x + (added if layer.after is None else layer.after[0](added))
        normal = layer.mlp_norm(x)
        if layer.gate_up is None or layer.down is None:
            # in the trainer's precision, so that experts are routed and computed as in training
            with torch.autocast(x.device.type, self.compute, enabled=self.compute != torch.float32):
                out = layer.mlp(normal[None])
            added = (out[0] if isinstance(out, tuple) else out)[0]
        else:
            gate, up = layer.gate_up(normal.to(self.compute)).chunk(2, -1)
            added = layer.down(layer.mlp.act_fn(gate).mul_(up))
        return x + (added if layer.after is None else layer.after[1](added))

    def prefill(
        self,
        x: Tensor,
        positions: Tensor,
        plan: Plan,
        slots: Tensor,
        deep: Sequence[Tensor],
        last: Tensor,
        before: Before | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run prompts in one packed sequence, or what is new of them.

        Args:
            x: [N, D] embeddings of the new tokens.
            positions: [A, 1, N] or [1, N].
            plan: of the complete prompts.
            slots: [N] bool, vision tokens.
            deep: added to the states at the slots after each of the first layers.
            last: [P] long, indices of the states to return: the last token of each prompt.
            before: what was computed of the prompts; None: all of their tokens are new.

        Returns:
            States [P, D], and keys and values [layers, 2, K, M, W] of the complete prompts.
        """
        factors = self.rotation(positions).unsqueeze(1).split(self.width, -1)
        total = len(x) if before is None else len(before.new) + len(before.old)
        cached = x.new_empty(len(self.layers), 2, self.pairs, total, self.width, dtype=self.compute)
        for number, layer in enumerate(self.layers):
            q, k, v = (tensor.transpose(0, 1)[None] for tensor in self._attention_input(layer, x, factors))
            if before is None:
                cached[number, 0], cached[number, 1] = k[0], v[0]
            else:
                q, k, v = before.completed(q, torch.cat([k, v]), cached[number], number)
            attended, _ = attend(layer.attention, q, k, v, None, scaling=self.scale, plan=plan)
            if before is not None:
                attended = attended[:, before.new]
            if ends := layer is self.layers[-1]:  # of which nothing else is needed
                x, attended = x[last], attended[:, last]
            x = self._rest(layer, x, attended[0].flatten(1))
            if number < len(deep) and not ends:
                x = x.index_put((slots,), deep[number].to(x.dtype), accumulate=True)
        return self.norm(x).to(self.head.dtype), cached

    def step(self, x: Tensor, rotation: Tensor, cache: Cache) -> Tensor:
        """Run one more token per row, without reading from the device.

        Args:
            x: [B, D] embeddings.
            rotation: [B, 2 W] of their positions.
            cache: of the rows, advanced by a column, where the token's keys and values are written.

        Returns:
            States [B, D].
        """
        count, factors, seen = len(x), rotation.unsqueeze(1).split(self.width, -1), cache.seen
        masks: dict[int | None, Tensor] = {None: cache.hidden[:count, :, seen]}
        for window in {layer.window for layer in self.layers if layer.window is not None}:
            near = torch.arange(seen.start, seen.stop, device=x.device) > cache.column - window
            masks[window] = masks[None].where(near, -torch.inf)
        if self.compute == torch.float32:
            masks = {window: mask.repeat_interleave(self.pairs, 0) for window, mask in masks.items()}
        for layer, memory in zip(self.layers, cache.memory, strict=True):
            q, k, v = self._attention_input(layer, x, factors)
            keys, values = memory[:, :count].unbind()
            keys.index_copy_(2, cache.column, k[:, :, None])
            values.index_copy_(2, cache.column, v[:, :, None])
            keys, values, mask = keys[:, :, seen], values[:, :, seen], masks[layer.window]
            q = q.unflatten(1, (self.pairs, -1))
            if self.compute == torch.float32:
                q, keys, values = q.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1)
                scores = torch.baddbmm(mask, q, keys.transpose(1, 2), alpha=self.scale)
                attended = torch.bmm(scores.softmax(-1), values)
            else:
                # keeps scores and softmax in float32, where separate products would round them
                attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[:, None], scale=self.scale)
            x = self._rest(layer, x, attended.reshape(count, -1))
        return self.norm(x).to(self.head.dtype)


def base(linear: Any) -> Tensor:
    """The weight of a linear layer without adapters."""
    return linear.get_base_layer().weight if hasattr(linear, "lora_A") else linear.weight  # type: ignore[no-any-return]


def _active_adapters(linear: Any) -> list[str]:
    if not hasattr(linear, "lora_A") or linear.disable_adapters or linear.merged:
        return []
    return [name for name in linear.active_adapters if name in linear.lora_A]


def _adapter(linears: Sequence[Any], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Scale times A [R, D] of the active adapters of fused layers, and B^T [R, O], 0 where a layer has another's."""
    inner, outer = [], []
    for linear in linears:
        weight, names = base(linear), _active_adapters(linear)
        inner += [linear.lora_A[name].weight * linear.scaling[name] for name in names]
        outer.append(torch.cat([weight.new_zeros(len(weight), 0), *(linear.lora_B[name].weight for name in names)], 1))
    return torch.cat(inner).to(dtype), torch.block_diag(*outer).T.to(dtype)
