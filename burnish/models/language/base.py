"""What all families of transformers' language models have in common: text in, text out, weights in, weights out."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from burnish.errors import UserError
from burnish.weights import load_network, refuse_not_finite

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.completion import Encoded, Features
    from burnish.language.attention import Plan
    from burnish.language.embedding import VisionOutput
    from burnish.language.model import Chat, Embedded, Video

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class TransformersModel:
    """A causal language model from a directory in transformers layout. A family says what differs."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]  # model_type in config.json that this family reads
    sees: ClassVar[bool] = False
    axes = 1
    look_always = False

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        import torch

        from burnish.language import attention

        self.path, self.network, self.tokenizer, self.compute = path, network, tokenizer, compute
        self.config: Any = network.config
        text = self.config.get_text_config()
        self._check(text)
        attention.install(text, *self._attending())
        self._read_processors()
        self.placeholders = torch.tensor(self._placeholders(), dtype=torch.long)
        self.banned = self.placeholders
        self.stop = self._stop_ids()
        self.vocabulary: int = text.vocab_size
        decoder = self.text(network)
        self.parameters_per_token = sum(parameter.numel() for parameter in decoder.layers.parameters())
        width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        self.attention_width = text.num_hidden_layers * text.num_attention_heads * width

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, compute: torch.dtype, device: str) -> Self:
        """Read a directory.

        Args:
            path: with config.json, weights, tokenizer, and processor where the family sees.
            dtype: precision of the weights.
            compute: precision of the forward pass.
            device: where the network goes.
        """
        from transformers import AutoTokenizer

        with quietly():
            network = cls._network(path, dtype)
        network.requires_grad_(False).eval().to(device)
        refuse_not_finite(network, path)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        return cls(path, network, tokenizer, compute=compute)

    # What a family may change

    @classmethod
    def unfit(cls, width: int, height: int) -> str:
        """Why the processor refuses a picture of that size; empty where it doesn't."""
        return ""

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        return load_network(
            AutoModelForCausalLM, path, dtype=dtype, trust_remote_code=False, attn_implementation="sdpa"
        )

    def _check(self, text: Any) -> None:
        kinds = set(getattr(text, "layer_types", None) or [])
        if further := kinds - {"full_attention", "sliding_attention"}:
            raise UserError(f"{self.path} has layers of {', '.join(sorted(further))}, which are not supported")
        kind = (getattr(text, "rope_parameters", None) or {}).get("rope_type", "default")
        if kind in ("dynamic", "longrope"):
            raise UserError(f"{self.path} has rope_type {kind}, whose positions change with the length of the text")

    def _read_processors(self) -> None:
        """Whatever turns pictures into pixels."""

    def _attending(self) -> Sequence[Any]:
        """Configurations, besides the decoder's, of modules that attend image by image."""
        return ()

    def _placeholders(self) -> list[int]:
        return []

    def _media(self, images: Sequence[Image], videos: Sequence[Video]) -> tuple[Features, list[str], list[str]]:
        """Processed pixels, and the text that stands for each image and each video."""
        from burnish.completion import Features

        if images or videos:
            raise UserError(f"{self.path} reads text only, but the prompt has images or videos")
        return Features.none(), [], []

    @cached_property
    def _blank(self) -> Features:
        """A small grey picture; nothing for models that don't see."""
        from PIL.Image import new

        return self._media([new("RGB", (32, 32), "grey")] if len(self.placeholders) else [], [])[0]

    def _marks(self) -> tuple[str, str]:
        """What the chat template writes where an image and where a video stands."""
        return "", ""

    def _positions(self, ids: Tensor, features: Features, videos: Sequence[Video]) -> Tensor:
        """Positions [A, L] of tokens [L], from 0."""
        import torch

        return torch.arange(len(ids)).expand(self.axes, -1)

    def text(self, network: nn.Module) -> Any:
        return network.get_decoder()  # type: ignore[operator]

    def _pixels(self, network: nn.Module, features: Features, device: torch.device) -> list[VisionOutput]:
        """What the vision tower makes of the pixels, for each placeholder in use."""
        return []

    def _deep(self, embedded: Embedded, source: Tensor) -> dict[str, Any]:
        """Further arguments of the decoder."""
        return {}

    # Text

    def encode(self, messages: Chat, images: Sequence[Image] = (), videos: Sequence[Video] = ()) -> Encoded:
        text, mark = self._render(messages)
        return self._encode(text, mark, images, videos)

    def turn(
        self,
        response: Sequence[int],
        messages: Chat,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
    ) -> Encoded:
        said = _unused_character(_written(messages))
        before = [{"role": "user", "content": said}, {"role": "assistant", "content": said}]
        text, mark = self._render([*before, *messages])
        encoded = self._encode(text.split(said)[-1], mark, images, videos)
        ids = encoded.ids[0]
        if len(response) and len(ids) and int(ids[0]) == response[-1] in self.stop:
            # the response has ended itself
            encoded.ids[0] = ids[1:]
            encoded.positions[0] = encoded.positions[0][:, 1:] - 1
        return encoded

    def answer(self, text: str) -> list[int]:
        mark = _unused_character(text)
        return [*self._ids(self._cut(text, mark), mark), self.stop[0]]

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def _render(self, messages: Chat) -> tuple[str, str]:
        """The chat as text, and the character at which it must be cut into pieces before it becomes tokens.

        A control token that somebody wrote as text is cut in two, so that it stays text.
        """
        mark = _unused_character(_written(messages))
        chat = [message | {"content": self._content(message["content"], mark)} for message in messages]
        if self.tokenizer.chat_template is None:
            return "\n".join(plain(message["content"]) for message in chat), mark
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), mark

    def _content(self, content: Any, mark: str) -> Any:
        if isinstance(content, str):
            return self._cut(content, mark)
        return [part | {"text": self._cut(part["text"], mark)} if part["type"] == "text" else part for part in content]

    def _cut(self, text: str, mark: str) -> str:
        return self._control.sub(lambda found: found[0][0] + mark + found[0][1:], text)

    @cached_property
    def _control(self) -> re.Pattern[str]:
        """Tokens that steer the model: special ones, and those that stand for media."""
        added = self.tokenizer.added_tokens_decoder.values()
        control = {token.content for token in added if token.special} | {mark for mark in self._marks() if mark}
        return re.compile("|".join(map(re.escape, sorted(control, key=len, reverse=True))) or r"(?!)")

    def _ids(self, text: str, mark: str) -> list[int]:
        pieces = [self.tokenizer(piece, add_special_tokens=False).input_ids for piece in text.split(mark) if piece]
        return list(chain.from_iterable(pieces))

    def _encode(self, text: str, mark: str, images: Sequence[Image], videos: Sequence[Video]) -> Encoded:
        import torch

        from burnish.completion import Encoded

        features, *expanded = self._media(images, videos)
        for what, place, texts in zip(("image", "video"), self._marks(), expanded, strict=True):
            text = _fill(text, place, texts, what) if place else text
        ids = torch.tensor(self._ids(text, mark), dtype=torch.long)
        return Encoded(ids=[ids], positions=[self._positions(ids, features, videos)], features=[features])

    def _stop_ids(self) -> tuple[int, ...]:
        generation = getattr(self.network, "generation_config", None)
        for source in (generation, self.config.get_text_config(), self.tokenizer):
            found = getattr(source, "eos_token_id", None)
            if found is not None:
                return tuple(found) if isinstance(found, list | tuple) else (found,)
        raise UserError(f"{self.path} names no token that ends a text; set eos_token_id in its generation_config.json")

    # The network

    def embed(self, network: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]) -> Embedded:
        from burnish.completion import Features
        from burnish.language.embedding import fill

        tokens = self.text(network).embed_tokens(ids)
        with self._autocast(ids.device):
            if features:
                return fill(tokens, ids, slots, self._pixels(network, Features.joined(features), ids.device))
            if self.look_always:
                # a look at nothing: it changes no number, but the tower takes part
                for seen in self._pixels(network, self._blank, ids.device):
                    tokens = tokens + 0 * sum(part.sum() for part in [seen.tokens, *seen.deep])
            return fill(tokens, ids, slots, [])

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
        return out.last_hidden_state[0]

    def head(self, network: nn.Module) -> Tensor:
        head: Any = network.get_output_embeddings()  # type: ignore[operator]
        return head.weight

    def _autocast(self, device: torch.device) -> Any:
        import torch

        return torch.autocast(device.type, self.compute, enabled=self.compute != torch.float32)

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        import torch

        with torch.device("meta"):
            # the network's own configuration names our attention, which nobody else knows
            plain = type(self.network)(type(self.config).from_pretrained(self.path, local_files_only=True))
        plain.load_state_dict(weights, assign=True)
        plain.tie_weights()
        plain.generation_config = self.network.generation_config
        with quietly():
            plain.save_pretrained(folder)
        written = {"config.json"} | {path.name for path in folder.iterdir()}
        for path in sorted(self.path.iterdir()):
            if path.is_file() and path.name not in written and not path.name.endswith(WEIGHTS):
                shutil.copyfile(path, folder / path.name)

    def save_lora(self, folder: Path, weights: dict[str, Tensor], metadata: dict[str, object]) -> None:
        from safetensors.torch import save_file

        folder.mkdir(parents=True, exist_ok=True)
        named = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
        save_file(named, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(metadata, indent=2, default=str) + "\n")


@contextmanager
def quietly() -> Iterator[None]:
    """Without the bars of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _unused_character(text: str) -> str:
    """A character of Unicode's private area that the text does not contain."""
    return next(chr(code) for code in range(0xE000, 0xF8FF) if chr(code) not in text)


def _written(messages: Chat) -> str:
    return "".join(plain(message["content"]) for message in messages)


def plain(content: str | Sequence[dict[str, Any]]) -> str:
    """The text of a message."""
    return content if isinstance(content, str) else "".join(p["text"] for p in content if p["type"] == "text")


def _fill(text: str, place: str, texts: Sequence[str], what: str) -> str:
    """Put in order what stands for each image or video."""
    pieces = text.split(place)
    if len(pieces) - 1 != len(texts):
        raise UserError(
            f"the messages have {len(pieces) - 1} {what} parts, but {len(texts)} {what}s came with them; "
            f"give one {what} for each part"
        )
    return "".join(chain.from_iterable(zip(pieces, [*texts, ""], strict=True)))
