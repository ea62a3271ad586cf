"""Families whose decoder runs under Burnish's own plan: packed and shared-prefix sequences, and its fast decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from burnish.models.language.base import TransformersModel
from burnish.models.placing import load_mapped
from burnish.registry import register
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.language.attention import Plan
    from burnish.language.decoding import DecodingRows
    from burnish.language.logprobs import ResponseStates
    from burnish.language.model import Embedded, Shown, Video, VisionOutput
    from burnish.language.rows import Layout
    from burnish.types.completion import Completion, Encoded, Features


class PackedFamily(TransformersModel):
    """Base of the families that know their model's layers; they override what differs."""

    always_run_vision = False

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        from burnish.language import attention

        self.path, self.config = path, network.config
        text = self.config.get_text_config()
        self._check(text)
        attention.install(text, *self._attending())
        super().__init__(path, network, tokenizer, compute=compute)
        decoder = self.text(network)
        self.parameters_per_token = sum(parameter.numel() for parameter in decoder.layers.parameters())
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.attention_width = text.num_hidden_layers * text.num_attention_heads * width

    # What families override

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

        kind = AutoModelForImageTextToText if cls.has_vision else AutoModelForCausalLM
        return load_mapped(kind, path, dtype=dtype, trust_remote_code=False, attn_implementation="sdpa")

    def _check(self, text: Any) -> None:
        kinds = set(getattr(text, "layer_types", None) or [])
        if further := kinds - {"full_attention", "sliding_attention"}:
            raise UserError(f"{self.path} has layers of type {', '.join(sorted(further))}, which are not supported")

    def _attending(self) -> Sequence[Any]:
        """Configurations of further modules to install Burnish's attention in: vision towers."""
        return ()

    def _media(self, images: Sequence[Image], videos: Sequence[Video]) -> tuple[Features, list[str], list[str]]:
        """Processed pixels, and the text that replaces the placeholder of each image and each video."""
        from burnish.types.completion import Features

        if images or videos:
            raise UserError(f"{self.path} reads text only, but a prompt has images or videos; remove them")
        return Features.none(), [], []

    @cached_property
    def _blank(self) -> Features:
        """A small grey picture; empty for models without a vision tower."""
        from PIL.Image import new

        return self._media([new("RGB", (32, 32), "grey")] if len(self.placeholders) else [], [])[0]

    def _positions(self, ids: Tensor, features: Features, videos: Sequence[Video]) -> Tensor:
        """Positions [A, L] of tokens [L], from 0."""
        import torch

        return torch.arange(len(ids)).expand(self.axes, -1)

    def _pixels(self, network: nn.Module, features: Features, device: torch.device) -> list[VisionOutput]:
        """Outputs of the vision tower for each kind of placeholder in use."""
        return []

    def _deep(self, embedded: Embedded, source: Tensor) -> dict[str, Any]:
        """Further arguments of the decoder."""
        return {}

    # Text

    def _encode(self, text: str, mark: str, shown: Shown, before: Sequence[int] = ()) -> Encoded:
        import torch

        from burnish.types.completion import Encoded

        features, image_texts, video_texts = self._media(shown.images, shown.videos)
        text = self.chat.fill(self.chat.fill(text, "image", image_texts), "video", video_texts)
        ids = torch.tensor([*before, *self.chat.ids(text, mark)], dtype=torch.long)
        return Encoded(ids=[ids], positions=[self._positions(ids, features, shown.videos)], features=[features])

    # The network

    def response_states(
        self, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"]
    ) -> ResponseStates:
        from burnish.language.packed import packed_states

        return packed_states(self, network, completion, layout=layout)

    @property
    def keeps_turns(self) -> bool:
        return True

    def decode_rows(
        self, network: nn.Module, rows: DecodingRows, *, batch_size: int, check_cancelled: Callable[[], None]
    ) -> None:
        from burnish.language.fast_decoding import FastDecoder

        FastDecoder(self, network, rows).run(batch_size, check_cancelled)

    def embed(self, network: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]) -> Embedded:
        from burnish.language.model import Embedded
        from burnish.types.completion import Features

        tokens = self.text(network).embed_tokens(ids)
        with self._autocast(ids.device):
            if features:
                return Embedded.filled(tokens, ids, slots, self._pixels(network, Features.joined(features), ids.device))
            if self.always_run_vision:
                # times 0: it changes no number, but the tower runs on every rank
                for output in self._pixels(network, self._blank, ids.device):
                    tokens = tokens + 0 * sum(tensor.sum() for tensor in [output.tokens, *output.deep])
            return Embedded.filled(tokens, ids, slots, [])

    def states(self, network: nn.Module, embedded: Embedded, source: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        tokens = embedded.tokens.index_select(0, source)[None]
        with self._autocast(source.device):
            out = self.text(network)(
                inputs_embeds=tokens,
                position_ids=positions[:, None] if self.axes > 1 else positions,
                attention_mask=None,
                use_cache=False,
                plan=plan,
                **self._deep(embedded, source),
            )
        states: Tensor = out.last_hidden_state[0]
        return states


@register("language model", "text")
class TextModel(PackedFamily):
    """Models without a vision tower: Llama, Qwen2, Qwen3, Mistral, and others with the same decoder."""

    name = "text"
    model_types = ("llama", "qwen2", "qwen3", "mistral", "ministral", "qwen2_moe", "qwen3_moe")
    reads_parts = False
