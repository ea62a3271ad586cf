"""Unified models of transformers that draw token by token, such as Janus: language models whose words are image codes.

What they write is numbered from 0, as their head has it, and the words of prompts stand behind all codes: so one table
of ids has both. Guidance is a second row for each image, in which the prompt's words are masked. The logits of both are
joined, and since the last layer of the head is linear, so are its inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from burnish.language.model.base import Shown
from burnish.language.model.chat import CUT
from burnish.language.model.universal import LanguageModel
from burnish.rewards.text.base import Response
from burnish.types.batch import Gathered
from burnish.utils.errors import UserError
from burnish.utils.images import NonFiniteImage
from burnish.utils.weights import quietly

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from burnish.language.logprobs import Head
    from burnish.language.model.base import Chat, Tools
    from burnish.language.model.capabilities import Capabilities
    from burnish.language.model.forwards import Collation
    from burnish.types.completion import Encoded

GUIDANCE = 5.0  # where generation_config.json has none, as transformers takes it
UNREAD = ("model.vision_model", "model.aligner", "model.vqmodel")  # by who draws
COMPARED = 6  # tokens that are compared with the class's ``generate``


def draws(kind: type) -> bool:
    """Whether a class of transformers draws images by tokens of a head of their own."""
    return hasattr(kind, "prepare_embeddings_for_image_generation") and hasattr(kind, "decode_image_tokens")


class ImageTokenModel(LanguageModel):
    """Runs the class's decoder on its embeddings and its head of image tokens; compared with its ``generate`` on load.

    A class has what Janus has: ``prepare_embeddings_for_image_generation``, ``decode_image_tokens``, and a
    ``model.generation_head`` that ends with the linear layer ``vision_head``.
    """

    unread_parts = UNREAD

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        import torch

        self.codes: int = network.config.vq_config.num_embeddings
        kind: Any = type(network)
        network.__class__ = _drawing(kind)
        super().__init__(path, network, tokenizer, compute=compute)
        how = network.generation_config
        self.begin = int(how.generation_kwargs["boi_token_id"])
        self.guidance = float(how.guidance_scale or GUIDANCE)
        kept = torch.tensor([one for one in (how.bos_token_id, self.begin) if one is not None]) + self.codes
        self._kept, self._mask = kept, int(how.pad_token_id) + self.codes
        self.placeholders = self.banned = kept[:0]
        self.stop: tuple[int, ...] = ()
        self.length = image_length(network.config)
        self.readable_ids, self.vocabulary = self.readable_ids + self.codes, self.codes

    def _learn_media(self) -> Collation:
        from burnish.language.model.forwards import Collation

        return Collation()  # prompts show nothing

    # Prompts and images

    def _encode(self, text: str, shown: Shown, before: Sequence[int] = ()) -> Encoded:
        from burnish.types.completion import Encoded, Features

        self._refuse_unread(shown)
        start = self.tokenizer.bos_token  # which transformers puts before what a template has written without it
        own = {"add_special_tokens": start is None or not text.startswith(start), "return_tensors": "pt"}
        ids = self.processor(text=[text], generation_mode="image", **own)["input_ids"][0].long()
        ids = ids[ids != self.processor.tokenizer.convert_tokens_to_ids(CUT)] + self.codes
        return Encoded(ids=[ids], positions=[self._positions(ids, Features())], features=[Features()])

    def count_tokens(self, messages: Chat, tools: Tools = ()) -> int:
        return len(self.encode(messages, tools=tools).ids[0])

    def paired(self, prompts: Encoded) -> Encoded:
        """Prompts, and behind them the same ones with their words masked, as in the class's ``generate``."""
        import torch

        if self.guidance == 1:
            return prompts
        masked = [
            ids.where((ids < self.codes) | torch.isin(ids, self._kept), torch.tensor(self._mask)) for ids in prompts.ids
        ]
        return prompts.cat([prompts, replace(prompts, ids=masked)])

    def joined(self, values: Tensor) -> Tensor:
        if self.guidance == 1:
            return values
        given, without = values.chunk(2)
        return without + self.guidance * (given - without)

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    def response(self, ids: Sequence[int], ended: bool) -> Response:
        """The image of its tokens; one that lacks some has none."""
        return Response("", finished=ended, image=self.image(ids) if ended else None)

    def image(self, ids: Sequence[int]) -> Any:
        """An image, uint8 [H, W, 3], by the class's own decoder; one at a time, so that it depends on no others."""
        import numpy as np
        import torch

        network, how = self.network, self.processor.image_processor
        with torch.inference_mode(False), torch.no_grad():
            codes = torch.tensor([list(ids)], device=next(network.parameters()).device)
            pixels = network.decode_image_tokens(codes)[0].float().cpu().numpy()
        shades = (pixels * np.array(how.image_std) + np.array(how.image_mean)) / how.rescale_factor
        image = np.nan_to_num(shades).clip(0, 255).astype(np.uint8)
        return image if np.isfinite(pixels).all() else (image * 0).view(NonFiniteImage)

    # The network

    def embed(self, network: Any, ids: Tensor) -> Tensor:
        return embedded(network, ids, self.codes)

    def predicting(self, network: Any, states: Tensor) -> Tensor:
        from torch.nn.functional import pad

        head = network.model.generation_head
        inputs = head.activation_fn(head.proj_out(states.to(head.proj_out.weight.dtype)))
        return pad(inputs, (0, 1), value=1.0)  # for the bias

    def head(self, network: Any) -> Head:
        """The last layer of the head of images, with its bias as the last column."""
        import torch

        from burnish.language.logprobs import Head

        last = network.model.generation_head.vision_head
        return Head(torch.cat([last.weight, last.bias[:, None]], 1))

    def checked(self, best: Capabilities | None = None) -> Capabilities:
        found = super().checked(best)
        if best is None:
            self._compare()
        return found

    def _compare(self) -> None:
        """Compare a greedy image with the one of the class's ``generate``."""
        import torch

        from burnish.language.model.capabilities import EXACT, own_logits
        from burnish.types.completion import Completion

        prompt = self.encode([{"role": "user", "content": [{"type": "text", "text": "A red fox in the snow"}]}])
        words = (prompt.ids[0] - self.codes)[None].to(self.network.device)
        inputs = {"inputs": words, "attention_mask": torch.ones_like(words)}
        few = min(image_length(self.network.config), COMPARED)
        short = patch.object(self.network.config.vision_config, "num_image_tokens", few)
        with quietly("transformers"), short, torch.no_grad():
            ids = self.network.generate(
                **inputs, generation_mode="image", do_sample=False, guidance_scale=self.guidance
            )
        prompts = Gathered(table=prompt, index=torch.tensor([0]))
        drawn = Completion.of_text(prompts, ids.cpu(), torch.tensor([ids.shape[1]]), axes=self.axes)
        (logits,) = own_logits(self, self.network, drawn, {})
        apart = float((logits.amax(-1) - logits.gather(-1, ids.T.to(logits.device))[:, 0]).mean())
        if not apart <= EXACT * (2 * self.guidance - 1):
            raise UserError(
                f"{self.path} can't be trained to draw: the tokens that its own generate takes as the likeliest are "
                f"others here, by {apart:.2g} nats; give another model"
            )


def image_length(config: Any) -> int:
    """Tokens of an image."""
    return int(config.vision_config.num_image_tokens)


def embedded(network: Any, ids: Tensor, codes: int) -> Tensor:
    """Embeddings [.., D] of ids [..]: of image codes below ``codes``, and behind them of words."""
    import torch

    drawn = network.prepare_embeddings_for_image_generation(ids.clamp_max(codes - 1))
    words = network.get_input_embeddings()((ids - codes).clamp_min(0))
    return torch.where((ids < codes)[..., None], drawn, words)


@cache
def _drawing(kind: Any) -> Any:
    """A class whose forward reads words and image codes, and predicts codes; all else is as it was."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    def forward(
        self: Any, input_ids: Any = None, attention_mask: Any = None, position_ids: Any = None,
        past_key_values: Any = None, use_cache: Any = None, inputs_embeds: Any = None, return_dict: bool = True,
    ) -> Any:  # fmt: skip
        if inputs_embeds is None:
            inputs_embeds = embedded(self, input_ids, self.config.vq_config.num_embeddings)
        out = self.model.language_model(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=past_key_values, use_cache=use_cache,
        )  # fmt: skip
        logits = self.model.generation_head(out.last_hidden_state)
        return CausalLMOutputWithPast(logits=logits, past_key_values=out.past_key_values)

    def head(self: Any) -> nn.Module:
        return self.model.generation_head  # type: ignore[no-any-return]

    return type(kind.__name__, (kind,), {"forward": forward, "get_output_embeddings": head})
