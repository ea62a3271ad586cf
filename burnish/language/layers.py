"""A decoder stripped to its products, for sampling: fused weights, a fixed cache, one token per row and step.

It computes what transformers' own layers compute (a test holds it to 1e-5) without what they need for generality:
modules, masks, dictionaries and a cache that grows by copying.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from burnish.language.attention import Plan, attend, window_of
from burnish.language.cache import Cache


@dataclass(frozen=True)
class Layer:
    """Weights of one layer; those that read the same input are joined."""

    before: Tensor  # [D] of the norm before attention
    qkv: Tensor  # [(H + 2 K) W, D]
    qkv_bias: Tensor | None
    q_norm: Tensor | None  # [W]
    k_norm: Tensor | None
    out: Tensor  # [D, H W]
    out_bias: Tensor | None
    between: Tensor  # [D] of the norm before the MLP
    gate_up: Tensor | None  # [2 I, D]; None: the module computes it
    down: Tensor | None  # [D, I]
    mlp: nn.Module
    attention: nn.Module
    window: int | None  # tokens that a token sees, itself included; None: all


class Layers:
    """All layers, the final norm and the language head, in the precision of the forward pass."""

    def __init__(self, decoder: Any, head: Tensor, *, compute: torch.dtype) -> None:
        config = decoder.config
        self.compute = compute if compute != torch.float32 else head.dtype
        self.heads, self.pairs = config.num_attention_heads, config.num_key_value_heads
        self.layers = [self._layer(layer) for layer in decoder.layers]
        self.width = self.layers[0].out.shape[1] // self.heads
        self.scale = decoder.layers[0].self_attn.scaling
        self.eps = config.rms_norm_eps
        self.norm = decoder.norm.weight
        self.head = head
        self.rotary = decoder.rotary_emb

    def _layer(self, layer: Any) -> Layer:
        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        bias = None
        if any(projection.bias is not None for projection in projections):
            bias = torch.cat([p.bias if p.bias is not None else dense(p).new_zeros(len(dense(p))) for p in projections])
        plain = hasattr(mlp, "gate_proj") and mlp.config.hidden_act == "silu" and mlp.down_proj.bias is None
        return Layer(
            before=layer.input_layernorm.weight,
            qkv=torch.cat([dense(projection) for projection in projections]).to(self.compute),
            qkv_bias=None if bias is None else bias.to(self.compute),
            q_norm=attention.q_norm.weight if hasattr(attention, "q_norm") else None,
            k_norm=attention.k_norm.weight if hasattr(attention, "k_norm") else None,
            out=dense(attention.o_proj).to(self.compute),
            out_bias=attention.o_proj.bias,
            between=layer.post_attention_layernorm.weight,
            gate_up=torch.cat([dense(mlp.gate_proj), dense(mlp.up_proj)]).to(self.compute) if plain else None,
            down=dense(mlp.down_proj).to(self.compute) if plain else None,
            mlp=mlp,
            attention=attention,
            window=window_of(attention),
        )

    def rotation(self, positions: Tensor) -> Tensor:
        """Cosine and signed sine [N, 2 W] of positions [A, 1, N] or [1, N]."""
        cos, sin = self.rotary(self.norm.new_zeros(1, dtype=torch.float32), positions)
        half = self.width // 2
        return torch.cat([cos, -sin[..., :half], sin[..., half:]], -1)[0]

    def _attention_input(self, layer: Layer, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rotated queries [N, H, W], rotated keys [N, K, W] and values [N, K, W]."""
        normal = F.rms_norm(x, (x.shape[-1],), layer.before, self.eps)
        joined = F.linear(normal.to(self.compute), layer.qkv)
        if layer.qkv_bias is not None:
            joined.add_(layer.qkv_bias)  # a product that begins with a bias is slower
        joined = joined.view(len(x), -1, self.width)
        turned, values = joined[:, : -self.pairs], joined[:, -self.pairs :]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = F.rms_norm(turned[:, : self.heads], (self.width,), layer.q_norm, self.eps)
            k = F.rms_norm(turned[:, self.heads :], (self.width,), layer.k_norm, self.eps)
            turned = torch.cat([q, k], 1)
        cos, sin = turn[:, None, : self.width], turn[:, None, self.width :]
        turned = torch.addcmul(turned * cos, turned.roll(self.width // 2, -1), sin).to(self.compute)
        return turned[:, : self.heads], turned[:, self.heads :], values

    def _rest(self, layer: Layer, x: Tensor, attended: Tensor) -> Tensor:
        """What follows attention [N, H W] in a layer."""
        x = x + F.linear(attended, layer.out, layer.out_bias)
        normal = F.rms_norm(x, (x.shape[-1],), layer.between, self.eps)
        if layer.gate_up is None or layer.down is None:
            out = layer.mlp(normal[None])
            return x + (out[0] if isinstance(out, tuple) else out)[0]
        gate, up = F.linear(normal.to(self.compute), layer.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate).mul_(up), layer.down)

    def logits(self, x: Tensor) -> Tensor:
        """Logits [N, V] float32 of states [N, D] before the final norm."""
        normal = F.rms_norm(x, (x.shape[-1],), self.norm, self.eps)
        return F.linear(normal.to(self.head.dtype), self.head).float()

    def read(
        self, x: Tensor, positions: Tensor, plan: Plan, slots: Tensor, deep: Sequence[Tensor], last: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Run whole prompts that lie in one line.

        Args:
            x: [N, D] embeddings.
            positions: [A, 1, N] or [1, N].
            plan: of the prompts.
            slots: [N] bool, tokens that stand for pixels.
            deep: added to the states at the slots after each of the first layers.
            last: [P] long, places whose states are wanted.

        Returns:
            States [P, D], and keys and values [layers, 2, K, N, W].
        """
        turn = self.rotation(positions)
        cached = x.new_empty(len(self.layers), 2, self.pairs, len(x), self.width, dtype=self.compute)
        for number, layer in enumerate(self.layers):
            q, k, v = self._attention_input(layer, x, turn)
            q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))
            cached[number, 0], cached[number, 1] = k[0], v[0]
            attended, _ = attend(layer.attention, q, k, v, None, scaling=self.scale, plan=plan)
            if layer is self.layers[-1]:
                # of the last layer nobody asks for anything but these
                return self._rest(layer, x[last], attended[0, last].flatten(1)), cached
            x = self._rest(layer, x, attended[0].flatten(1))
            if number < len(deep):
                x = x.index_put((slots,), deep[number].to(x.dtype), accumulate=True)
        raise AssertionError("a decoder without layers")

    def step(self, x: Tensor, turn: Tensor, cache: Cache) -> Tensor:
        """Run one further token per row.

        Args:
            x: [B, D] embeddings.
            turn: [B, 2 W] rotation of their positions.
            cache: of the rows; the token is entered.

        Returns:
            States [B, D].
        """
        count = len(x)
        mask = cache.advance()
        for layer, (keys, values) in zip(self.layers, cache.window(), strict=True):
            q, k, v = self._attention_input(layer, x, turn)
            keys[:, -1] = k.flatten(0, 1)
            values[:, -1] = v.flatten(0, 1)
            near = slice(-layer.window, None) if layer.window is not None else slice(None)  # all rows end alike
            q = q.reshape(count * self.pairs, self.heads // self.pairs, self.width)
            scores = torch.baddbmm(mask[..., near], q, keys[:, near].transpose(1, 2), alpha=self.scale)
            attended = torch.bmm(scores.softmax(-1), values[:, near])
            x = self._rest(layer, x, attended.view(count, -1))
        return x


def dense(linear: Any) -> Tensor:
    """The weight of a linear layer, with its adapters in it if it has any that are switched on."""
    if not hasattr(linear, "lora_A"):
        return linear.weight
    weight = linear.get_base_layer().weight
    if linear.disable_adapters or linear.merged:
        return weight
    for name in linear.active_adapters:
        if name in linear.lora_A:
            weight = weight + linear.get_delta_weight(name).to(weight.dtype)
    return weight
