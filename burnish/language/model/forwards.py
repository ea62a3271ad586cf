"""The forward of a class of transformers, as it is: its arguments, in which conversations are padded and their media
joined as its processor joins them, and the states that its head is given."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from burnish.language.attention import Plan, attend
from burnish.language.logprobs import ResponseStates
from burnish.language.model.base import Audio, Embedded, Shown, Video
from burnish.types.batch import to_device
from burnish.types.completion import Completion, Encoded, Features, pad_and_cat
from burnish.utils.errors import UserError, first_line

if TYPE_CHECKING:
    from burnish.language.model.capabilities import Capabilities


TEXT = ("input_ids", "attention_mask", "labels", "position_ids")  # what a processor returns beside media and kinds
KINDS = "token_type_ids"  # how the names of kinds of tokens end
Inputs = dict[str, Any]

Process = Callable[[list[str], Sequence[Shown]], Inputs]


def conversations(completion: Completion, fill: Mapping[str, int]) -> Encoded:
    """Each prompt with its response, as one text; ``fill`` are the kinds of the policy's tokens."""
    prompts = completion.prompts.rows()
    ids, positions, features = [], [], []
    for row, length in enumerate(completion.length.tolist()):
        opening, own = prompts.features[row], completion.features[row]
        kinds = {
            name: torch.cat([kind, own.kinds.get(name, torch.full((length,), fill.get(name, 0)))])
            for name, kind in opening.kinds.items()
        }
        ids.append(torch.cat([prompts.ids[row], completion.ids[row, :length]]))
        positions.append(torch.cat([prompts.positions[row], completion.positions[row, :, :length]], 1))
        features.append(replace(Features.joined([opening, own]), kinds=kinds))
    return Encoded(ids=ids, positions=positions, features=features)


@dataclass(frozen=True)
class Collation:
    """How media of several conversations become one tensor, as learned from the processor."""

    axes: dict[str, int] = field(default_factory=dict)  # along which conversations follow one another
    rows: frozenset[str] = frozenset()  # tensors that have one entry per conversation, also for those without media
    # tensors [1, L, ...] with an entry for each token of a prompt, as where text attends to images in layers of its
    # own (Mllama): responses go on with the last entry, as they do in the class's own decoding
    per_token: frozenset[str] = frozenset()
    within: dict[str, int] = field(default_factory=dict)  # axes along which further media of the same prompt follow
    # kinds of media that it reads, and whether media of later turns can follow those before, as all of them are at once
    appends: dict[str, bool] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)  # why it reads none of the other kinds, in its own words

    def groups(self, rows: Encoded, *, together: bool, mixes: bool) -> list[list[int]]:
        """Which conversations are in one forward: those whose media can be joined, if any can, or each alone.

        ``mixes`` says that those with other kinds of media can be in one, too.
        """
        groups: dict[Any, list[int]] = {}
        for number, features in enumerate(rows.features):
            names = frozenset(features.tensors)
            joined = together and names <= self.axes.keys()
            key = number if not joined else "all" if mixes else names
            groups.setdefault(key, []).append(number)
        return list(groups.values())

    def media(self, features: Sequence[Features]) -> Inputs:
        """The media of several conversations as arguments of a forward."""
        inputs: Inputs = {}
        for name in dict.fromkeys(name for one in features for name in one.tensors):
            axis = self.axes.get(name, 0)
            example = next(one.tensors[name] for one in features if name in one.tensors)
            blank = example.new_zeros([int(n == axis) for n in range(example.ndim)])
            tensors = [one.tensors.get(name, blank if name in self.rows else None) for one in features]
            inputs[name] = pad_and_cat([tensor for tensor in tensors if tensor is not None], axis)
        return inputs


def learn(ask: Callable[[Sequence[str]], str], process: Process, audio_rate: int | None, frames: int) -> Collation:
    """How the tensors of all media that a processor reads are joined, from a few of its own batches.

    Args:
        ask: the text of a prompt with media of these kinds.
        process: what the processor returns for texts and their media.
        audio_rate: samples per second of sounds; None if the model hears none.
        frames: of a video at least.
    """
    found, refused = Collation(), dict[str, str]()
    for kind in ("image", "video", "audio") if audio_rate is not None else ("image", "video"):
        media = samples(kind, audio_rate or 0, frames)

        def made(*prompts: Sequence[int], kind: str = kind, media: list[Any] = media) -> Inputs:
            """Of prompts with some of the media each, by their numbers; nothing where the processor refuses them."""
            shown = [Shown(**{f"{kind}s": [media[number] for number in prompt]}) for prompt in prompts]
            try:
                return process([ask([kind] * len(prompt)) for prompt in prompts], shown)
            except Exception as error:
                refused.setdefault(kind, first_line(error))
                return {}

        first, second, more = made([0]), made([1]), made([1, 2])
        one, single, two, three = map(media_of, (first, second, more, made([0, 1, 2])))
        if not one:  # it refuses them, or leaves them out without a word (videos of Gemma 3)
            continue
        together, mixed = media_of(made([0], [1, 2] if two else [1])), media_of(made([], [0]))
        aligned = _per_token(first) & _per_token(more or second)
        # one without an axis keeps its conversation alone
        axes = {
            name: _axis(one[name], (two or single)[name], together.get(name)) for name in one if name not in aligned
        }
        known = {name: axis for name, axis in axes.items() if axis is not None}
        rows = {n for n, axis in known.items() if n in mixed and mixed[n].shape[axis] > one[n].shape[axis]}
        whole = {name: _axis(one[name], two[name], three[name]) for name in one.keys() & two.keys() & three.keys()}
        within = {name: axis for name, axis in whole.items() if axis is not None}
        appends = bool(three) and all(
            name in within and torch.equal(pad_and_cat([one[name], two[name]], within[name]), expected)
            for name, expected in three.items()
        )
        found = Collation(
            found.axes | known, found.rows | rows, per_token=found.per_token | aligned, within=found.within | within,
            appends=found.appends | {kind: appends},
        )  # fmt: skip
    return replace(found, refused=refused)


def media_of(inputs: Inputs) -> dict[str, Tensor]:
    """The media among what a processor returns."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, Tensor) and value.ndim}
    return {name: value for name, value in tensors.items() if name not in TEXT and not name.endswith(KINDS)}


def _per_token(inputs: Inputs) -> set[str]:
    """Names of media whose second axis is as long as the text."""
    tokens = inputs["input_ids"].shape[1]
    return {name for name, value in media_of(inputs).items() if value.ndim > 2 and value.shape[1] == tokens}


def kinds_of(inputs: Inputs) -> dict[str, Tensor]:
    """The kinds [L] of the tokens of one prompt among what a processor returns."""
    return {name: value[0].long() for name, value in inputs.items() if name.endswith(KINDS)}


def _axis(first: Tensor, second: Tensor, both: Tensor | None) -> int | None:
    """The axis along which two tensors were joined; None if it can't be told."""
    if both is None or not first.ndim == second.ndim == both.ndim:
        return None
    for axis in range(both.ndim):
        rest = [n for n in range(both.ndim) if n != axis]
        if both.shape[axis] == first.shape[axis] + second.shape[axis] and all(
            both.shape[n] == max(first.shape[n], second.shape[n]) for n in rest
        ):
            return axis
    return None


def loses(process: Process, ask: Callable[[Sequence[str]], str], frames: int) -> bool:
    """Whether a processor returns less of an image and a video in one prompt than of both apart (SmolVLM)."""
    image, video = Shown(images=samples("image")[:1]), Shown(videos=samples("video", frames=frames)[:1])
    apart = [media_of(process([ask([kind])], [shown])) for kind, shown in (("image", image), ("video", video))]
    try:
        both = media_of(process([ask(["image", "video"])], [Shown(image.images, video.videos)]))
    except Exception:  # so it says itself
        return False
    return sum(one.numel() for one in both.values()) < sum(one.numel() for each in apart for one in each.values())


def samples(kind: str, rate: int = 0, frames: int = 0) -> list[Any]:
    """Three media of a kind, of unequal sizes; sounds at a rate, videos of as many frames at least."""
    from PIL import Image

    draw = np.random.default_rng(0)
    if kind == "image":
        sizes = ((44, 60), (76, 44), (52, 96))  # height and width
        return [Image.fromarray(draw.integers(0, 256, (*size, 3), dtype=np.uint8)) for size in sizes]
    if kind == "audio":
        return [Audio(draw.normal(0, 0.1, round(s * rate)).astype(np.float32), rate) for s in (1.5, 1.0, 2.5)]
    return [Video(draw.integers(0, 256, (max(count, frames), 48, 64, 3), dtype=np.uint8), 2.0) for count in (4, 8, 6)]


class Forwards:
    """Runs conversations through a network of one class."""

    def __init__(
        self, network: Any, collation: Collation, embed: Callable[[Any, Tensor], Tensor], *, pad: int,
        compute: torch.dtype,
    ) -> None:  # fmt: skip
        self.collation, self.embed_ids, self.pad, self.compute = collation, embed, pad, compute
        self.accepted = frozenset(accepted(type(network)))
        self.upload: Callable[[Tensor, torch.device], Tensor] = to_device

    def inputs(self, network: Any, rows: Encoded, *, side: Literal["left", "right"] = "right") -> Inputs:
        """Arguments of a forward, with the class's own positions."""
        join = partial(nn.utils.rnn.pad_sequence, batch_first=True, padding_side=side)
        inputs: Inputs = {
            "input_ids": join(rows.ids, padding_value=self.pad),
            "attention_mask": join([torch.ones_like(ids) for ids in rows.ids]),
        }
        for name in dict.fromkeys(name for one in rows.features for name in one.kinds):
            known = zip(rows.ids, rows.features, strict=True)
            inputs[name] = join([one.kinds.get(name, torch.zeros_like(ids)) for ids, one in known])
        inputs |= self.collation.media(rows.features)
        for name in self.collation.per_token & inputs.keys():  # of a conversation that is alone in its forward
            value = inputs[name]
            missing = rows.lengths[0] - value.shape[1]
            inputs[name] = torch.cat([value, value[:, -1:].expand(-1, missing, *value.shape[2:])], 1)
        if "position_ids" in self.accepted:  # counted where the tokens are: a GPU would be waited for
            rest = {name: value for name, value in inputs.items() if name != "input_ids" and name in self.accepted}
            inputs["position_ids"] = network._prepare_position_ids_for_generation(inputs["input_ids"], rest)
        return self.placed(network, inputs)

    def placed(self, network: Any, inputs: Inputs) -> Inputs:
        """What the forward takes of some tensors, where the network is and in the precision of its weights."""
        device = next(network.parameters()).device
        # Reformer has no positions
        given = {name: value for name, value in inputs.items() if name in self.accepted and value is not None}
        inputs = {name: self.upload(value, device) for name, value in given.items()}
        return inputs | {name: value.to(network.dtype) for name, value in inputs.items() if value.is_floating_point()}

    def responses(self, network: Any, completion: Completion, known: Capabilities, *, single: bool) -> ResponseStates:
        """States of the policy's tokens: each response with its prompt, padded on the right.

        Args:
            network: that runs them.
            completion: prompts and responses.
            known: whether rows share a forward, and logits of the class's head are needed.
            single: all of them must be in one forward.

        Raises:
            UserError: they can't be.
        """
        rows, logits = conversations(completion, known.fill), known.own_logits
        groups = self.collation.groups(rows, together=known.padded, mixes=known.mixes)
        if single and len(groups) > 1:
            raise UserError(
                f"{type(network).__name__} can't have the media of a micro-batch in one forward, which sharded weights "
                "and router losses need; train it in one process, or on text"
            )
        device = next(network.parameters()).device
        prompts = [completion.prompts.table.lengths[number] for number in completion.prompts.index.tolist()]
        hidden, scores, index, start = [], [], {}, 0
        for group in groups:
            inputs = self.inputs(network, rows.select(group)) | {"use_cache": False}
            out, states = self.call(network, inputs, logits="all" if logits else "last")
            hidden.append(states.flatten(0, 1))
            scores.append(out.logits.flatten(0, 1) if logits else states)
            for row in group:
                # a token is predicted from the one before it
                index[row] = start + prompts[row] - 1 + completion.mask[row].nonzero().flatten()
                start += states.shape[1]
        order = to_device(torch.cat([index[row] for row in range(len(rows))]).to(torch.long), device)
        return ResponseStates(
            torch.cat(hidden).index_select(0, order),
            to_device(completion.mask, device),
            order,
            logits=torch.cat(scores).index_select(0, order) if logits else None,
        )

    def embed(
        self, network: Any, decoder: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]
    ) -> Embedded:
        """Embeddings of ids [M] with their media, in order, as the decoder gets them from the class's forward.

        Raises:
            ValueError: the decoder gets tensors that are not told apart by token.
        """
        if not features:
            return Embedded(self.embed_ids(network, ids), slots, [])
        if unknown := {name for one in features for name in one.tensors} - self.collation.axes.keys():
            raise ValueError(f"{', '.join(sorted(unknown))} of several prompts can't be joined")
        inputs: Inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None], "use_cache": False}
        inputs |= self.placed(network, self.collation.media(features))
        if "position_ids" in self.accepted:  # they are given to the decoder itself
            inputs["position_ids"] = torch.arange(len(ids), device=ids.device)[None]

        given: Inputs = {}

        def stop(module: nn.Module, args: Any, arguments: Inputs) -> None:
            given.update(arguments)
            raise ReachedError

        hook = decoder.register_forward_pre_hook(stop, with_kwargs=True)
        with suppress(ReachedError), hook, self.precision(inputs):
            network(**inputs)
        deep, mask = given.pop("deepstack_visual_embeds", None), given.pop("visual_pos_masks", None)
        others = [name for name, value in given.items() if isinstance(value, Tensor | list) and name not in GIVEN]
        if others or given.get("inputs_embeds") is None:
            raise ValueError(f"the decoder is given {', '.join(others) or 'no embeddings'}")
        return Embedded(given["inputs_embeds"].squeeze(0), slots if mask is None else mask[0], list(deep or []))

    def packed(self, decoder: Any, embedding: Embedded, source: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        """Last hidden states [N, D] of a packed sequence ``source`` [N] of a table, at positions [A, N]."""
        slots, deep = embedding.at(source)
        inputs: Inputs = {"visual_pos_masks": slots, "deepstack_visual_embeds": deep} if deep else {}
        inputs |= {
            "inputs_embeds": embedding.tokens.index_select(0, source)[None],
            "position_ids": positions[:, None] if len(positions) > 1 else positions,
            # a mask that is made already; the plan takes its place
            "attention_mask": torch.ones(1, 1, 1, 1, dtype=torch.bool, device=source.device),
        }
        with self.precision(inputs):
            found: Tensor = decoder(**inputs, use_cache=False, plan=plan).last_hidden_state.squeeze(0)
        return found

    def precision(self, inputs: Inputs) -> Any:
        """The context of a forward pass."""
        device = next(value.device.type for value in inputs.values() if isinstance(value, Tensor))
        # a forward uses each weight once; a cache of the cast ones would only keep a second network until it ends
        return torch.autocast(device, self.compute, enabled=self.compute != torch.float32, cache_enabled=False)

    def call(self, network: Any, inputs: Inputs, *, logits: Literal["all", "last"]) -> tuple[Any, Tensor]:
        """The class's output, and the states [B, L, D] that its head is given; logits for all tokens, or the last."""
        seen: list[Tensor] = []

        def head(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            seen.append(given[0])
            return None if logits == "all" else (given[0][:, -1:], *given[1:])

        hook = network.get_output_embeddings().register_forward_pre_hook(head)
        with hook, self.precision(inputs):
            out = network(**inputs, return_dict=True)
        if not seen:
            raise ValueError("it doesn't call the head that get_output_embeddings() names: its states can't be read")
        return out, seen[0]


def accepted(kind: type) -> Iterator[str]:
    """Names of the arguments of a class's forward; where it passes others on, those of the classes above it too."""
    for one in kind.__mro__:
        if "forward" in vars(one):
            parameters = inspect.signature(vars(one)["forward"]).parameters
            yield from parameters
            if not any(value.kind is value.VAR_KEYWORD for value in parameters.values()):
                return


@contextmanager
def outside_inference() -> Iterator[None]:
    """No gradients, but ordinary tensors: a class may keep some, and training couldn't use them."""
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextmanager
def caching(network: nn.Module) -> Iterator[None]:
    """Layers keep what they add to a cache, also those that drop it under gradient checkpointing."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer) and layer.training]
    with ExitStack() as restoring:
        for layer in layers:
            restoring.enter_context(patch.object(layer, "training", False))
        yield


class FirstOfEqual(TorchFunctionMode):
    """Of equal numbers ``topk`` takes the first; which one it takes otherwise depends on the shape of the batch.

    Indexers of sparse attention give many tokens the score 0 (DeepSeek-V3.2, arXiv:2512.02556, equation 1: ReLU).
    """

    most: int | None = None  # that are taken; fewer than the indexer asks for while a class is tried

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ == "topk":
            func = self._topk
        return func(*args, **(kwargs or {}))

    def _topk(self, values: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        ranked, places = values.sort(dim=dim, descending=largest, stable=True)
        count = min(k, self.most or k)
        return torch.return_types.topk((ranked.narrow(dim, 0, count), places.narrow(dim, 0, count)))


FIRST: Any = FirstOfEqual()


def indexers(network: nn.Module) -> list[nn.Module]:
    """What chooses the tokens that are attended to."""
    return [module for module in network.modules() if type(module).__name__.endswith("Indexer")]


def settle_ties(network: nn.Module) -> None:
    """Have a network's indexers choose the first of tokens with equal scores."""
    for module in indexers(network):
        module.register_forward_pre_hook(lambda *_: FIRST.__enter__() and None)
        module.register_forward_hook(lambda *_: FIRST.__exit__(None, None, None), always_call=True)


DECODER, TOWER = "burnish_planned", "burnish_flash"  # towers hand boundaries of images to what is called flash
GIVEN = ("position_ids", "attention_mask", "inputs_embeds", "input_ids")


class ReachedError(Exception):
    """The decoder was called; not an error."""


def planned(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    plan: Plan | None = None, cu_seq_lens_q: Tensor | None = None, **more: Any,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Attention by a plan or the boundaries of images where there are some, and as transformers has it otherwise."""
    if plan is not None or cu_seq_lens_q is not None:
        if unknown := [name for name in ("s_aux", "softcap") if more.get(name) is not None]:
            raise ValueError(f"attention with {', '.join(unknown)} has no plan")
        return attend(module, query, key, value, attention_mask, plan=plan, cu_seq_lens_q=cu_seq_lens_q, **more)
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, query, key, value, attention_mask, **more)  # type: ignore[no-any-return]


def switch(network: Any, decoder: Any, *, on: bool, tower: bool = True) -> None:
    """Let a decoder's layers attend by a plan, and its vision tower all images at once; else they do as before."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    for name in (DECODER, TOWER):
        AttentionInterface.register(name, planned)
        AttentionMaskInterface.register(name, sdpa_mask)
    decoder.config._attn_implementation = DECODER if on else "sdpa"
    vision: Any = getattr(network.config, "vision_config", None)
    if getattr(vision, "_attn_implementation", None) in ("sdpa", TOWER):
        vision._attn_implementation = TOWER if on and tower else "sdpa"
