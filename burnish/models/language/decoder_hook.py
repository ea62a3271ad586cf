"""A class's decoder under Burnish's plan: its inputs are what the class's own forward hands it, media merged in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from burnish.language.attention import Plan, attend
from burnish.language.model import Embedded
from burnish.models.language.collation import Collation, Inputs
from burnish.models.language.forwards import Forwards
from burnish.types.completion import Features

DECODER, TOWER = "burnish_planned", "burnish_flash"  # towers hand boundaries of pictures to what is called flash
FORMS = {"full_attention", "sliding_attention"}  # of layers, that a plan can have
GIVEN = ("position_ids", "attention_mask", "inputs_embeds", "input_ids")


class ReachedError(Exception):
    """The decoder was called; not an error."""

    def __init__(self, given: Inputs) -> None:
        self.given = given


def planned(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    plan: Plan | None = None, cu_seq_lens_q: Tensor | None = None, **more: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention by a plan or the boundaries of pictures where there are some, and as transformers has it otherwise."""
    if plan is not None or cu_seq_lens_q is not None:
        if unknown := [name for name in ("s_aux", "softcap") if more.get(name) is not None]:
            raise ValueError(f"attention with {', '.join(unknown)} has no plan")
        return attend(module, query, key, value, attention_mask, plan=plan, cu_seq_lens_q=cu_seq_lens_q, **more)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    found: tuple[Tensor, Tensor | None] = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    return found


def switch(network: Any, decoder: Any, *, on: bool, tower: bool = True) -> None:
    """Let a decoder's layers attend by a plan, and its vision tower all pictures at once; else they do as before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name in (DECODER, TOWER):
        AttentionInterface.register(name, planned)
        AttentionMaskInterface.register(name, sdpa_mask)
    decoder.config._attn_implementation = DECODER if on else "sdpa"
    vision: Any = getattr(network.config, "vision_config", None)
    if getattr(vision, "_attn_implementation", None) in ("sdpa", TOWER):
        vision._attn_implementation = TOWER if on and tower else "sdpa"


def has_plan(decoder: Any) -> bool:
    """Whether the configuration of a decoder says that its attention is of a kind that a plan can have."""
    config = decoder.config
    kinds = set(getattr(config, "layer_types", None) or [])
    return config._attn_implementation == "sdpa" and kinds <= FORMS


def embedded(
    forwards: Forwards, network: Any, decoder: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]
) -> Embedded:
    """Embeddings of ids [M] with their media, as the decoder gets them from the class's forward.

    Raises:
        ValueError: the decoder gets tensors that are not told apart by token.
    """
    if not features:
        return Embedded(network.get_input_embeddings()(ids), slots, [])
    inputs: Inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], "use_cache": False}
    media = _joined(forwards.collation, features)
    inputs |= forwards.placed(network, media)
    if "position_ids" in forwards.accepted:  # they are given to the decoder itself
        inputs["position_ids"] = torch.arange(len(ids), device=ids.device)[None]
    given = _reached(forwards, network, decoder, inputs)
    deep, mask = given.pop("deepstack_visual_embeds", None), given.pop("visual_pos_masks", None)
    unknown = [name for name, value in given.items() if isinstance(value, Tensor | list) and name not in GIVEN]
    if unknown or given.get("inputs_embeds") is None:
        raise ValueError(f"the decoder is given {', '.join(unknown) or 'no embeddings'}")
    return Embedded(given["inputs_embeds"][0], slots if mask is None else mask[0], list(deep or []))


def states(decoder: Any, embedding: Embedded, source: Tensor, positions: Tensor, plan: Plan) -> Tensor:
    """States [N, D] of a packed sequence."""
    slots, deep = embedding.at(source)
    more: Inputs = {"visual_pos_masks": slots, "deepstack_visual_embeds": deep} if deep else {}
    out = decoder(
        inputs_embeds=embedding.tokens.index_select(0, source)[None],
        position_ids=positions[:, None] if len(positions) > 1 else positions,
        # a mask that is made already; the plan takes its place
        attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=source.device),
        use_cache=False,
        plan=plan,
        **more,
    )
    found: Tensor = out.last_hidden_state[0]
    return found


def _reached(forwards: Forwards, network: Any, decoder: nn.Module, inputs: Inputs) -> Inputs:
    def stop(module: nn.Module, args: Any, given: Inputs) -> None:
        raise ReachedError(dict(given))

    hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        with forwards.precision(inputs):
            network(**inputs)
    except ReachedError as reached:
        return reached.given
    finally:
        hook.remove()
    raise ValueError("the forward doesn't call the decoder")


def _joined(collation: Collation, features: Sequence[Features]) -> Inputs:
    if unknown := {name for one in features for name in one.tensors} - collation.axes.keys():
        raise ValueError(f"{', '.join(sorted(unknown))} of several prompts can't be joined")
    return collation.media(features)
