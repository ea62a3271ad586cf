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

from burnish.models.language.templates import (
    RESULT,
    filled,
    joined,
    knows_results,
    plain,
    read_template,
    rendered,
    unused_character,
)  # fmt: skip
from burnish.utils.errors import UserError
from burnish.utils.weights import load_network, refuse_non_finite

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from burnish.language.attention import Plan
    from burnish.language.embedding import VisionOutput
    from burnish.language.model import Chat, Embedded, Video
    from burnish.types.completion import Encoded, Features

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class TransformersModel:
    """A causal language model from a directory in transformers layout. A family says what differs."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]  # model_type in config.json that this family reads
    sees: ClassVar[bool] = False
    axes = 1
    look_always = False
    reads_parts = True  # its templates know messages of parts; else their texts are joined

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        import torch

        from burnish.language import attention

        self.path, self.network, self.tokenizer, self.compute = path, network, tokenizer, compute
        self.config: Any = network.config
        text = self.config.get_text_config()
        self._check(text)
        attention.install(text, *self._attending())
        self._read_processors()
        tokenizer.chat_template = read_template(path, tokenizer, sees=bool(self._placeholders()))
        self.placeholders = torch.tensor(self._placeholders(), dtype=torch.long)
        self.banned = self.placeholders
        self.stop = self._stop_ids()
        self.end = self._turn_end()
        self.stop = tuple(dict.fromkeys([*self.stop, self.end[-1]]))
        self.vocabulary: int = text.vocab_size
        self.longest = _positions(text)
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
        refuse_non_finite(network, path)
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
        from burnish.types.completion import Features

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

    def encode(
        self,
        messages: Chat,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> Encoded:
        text, mark = self._render(messages, tools)
        return self._encode(text, mark, images, videos, before=self._opening)

    def words(self, messages: Chat, tools: Sequence[dict[str, Any]] = ()) -> int:
        text, mark = self._render(messages, tools)
        return len(self._opening) + len(self._ids(text, mark))

    def turn(
        self,
        response: Sequence[int],
        messages: Chat,
        images: Sequence[Image] = (),
        videos: Sequence[Video] = (),
        tools: Sequence[dict[str, Any]] = (),
    ) -> Encoded:
        text, mark = self._behind(joined(messages), messages, tools)
        encoded = self._encode(text, mark, images, videos)
        ids = encoded.ids[0]
        begins = ids[: len(self.end)].tolist()
        if len(response) and response[-1] in self.stop and response[-1] in begins:
            # the response has ended itself
            ended = begins.index(response[-1]) + 1
            encoded.ids[0] = ids[ended:]
            encoded.positions[0] = encoded.positions[0][:, ended:] - ended
        return encoded

    def response_ids(self, text: str) -> list[int]:
        mark = unused_character(text)
        return [*self._ids(self._gap + self._cut(text, mark), mark), *self.end]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _render(self, messages: Chat, tools: Sequence[dict[str, Any]] = (), *, prompt: bool = True) -> tuple[str, str]:
        """The chat as text, and the character at which it must be cut into pieces before it becomes tokens.

        A control token that somebody wrote as text is cut in two, so that it stays text.
        """
        mark = unused_character(joined(messages))
        chat = [message | {"content": self._content(message, mark)} for message in messages]
        if self.tokenizer.chat_template is None:
            return "\n".join(plain(message["content"]) for message in chat), mark
        return rendered(self.path, self.tokenizer, chat, tools, prompt=prompt), mark

    def _behind(
        self, written: str, messages: Chat, tools: Sequence[dict[str, Any]] = (), *, prompt: bool = True
    ) -> tuple[str, str]:
        """What the template writes behind a response: its end, and further messages."""
        said = unused_character(written)
        text, mark = self._render(
            [{"role": "user", "content": said}, {"role": "assistant", "content": said}, *messages], tools, prompt=prompt
        )
        if said not in text:
            raise UserError(f"the chat template of {self.path} leaves out what the assistant says; fetch it again")
        return text.rpartition(said)[2], mark

    def _turn_end(self) -> tuple[int, ...]:
        """What a response ends with: what the template writes behind it, up to the token that marks the end."""
        eos = self.tokenizer.eos_token_id
        if self.tokenizer.chat_template is not None:
            ids = self._ids(*self._behind("", [], prompt=False))
            marks = {token for token, one in self.tokenizer.added_tokens_decoder.items() if one.special} | {*self.stop}
            for place, token in enumerate(ids):
                if token in marks:
                    return tuple(ids[: place + 1])
        return (eos if eos in self.stop else self.stop[0],)

    @cached_property
    def _gap(self) -> str:
        """White space that the template writes before a response, where its prompt ends without (SmolVLM)."""
        if self.tokenizer.chat_template is None:
            return ""
        said = unused_character("")
        asked = [{"role": "user", "content": said}]
        before, _ = self._render(asked)
        whole, _ = self._render([*asked, {"role": "assistant", "content": said}], prompt=False)
        gap = whole[len(before) :].partition(said)[0] if whole.startswith(before) else ""
        return gap if gap.isspace() else ""

    @cached_property
    def _opening(self) -> list[int]:
        """What the tokenizer writes in front of a text; a chat template has it where it belongs."""
        if self.tokenizer.chat_template is not None:
            return []
        bare = self.tokenizer("a", add_special_tokens=False).input_ids
        whole: list[int] = self.tokenizer("a").input_ids
        return whole[: next(place for place in range(len(whole)) if whole[place:][: len(bare)] == bare)]

    def _content(self, message: dict[str, Any], mark: str) -> Any:
        content = message["content"]
        if isinstance(content, str) or not self.reads_parts:
            content = [{"type": "text", "text": plain(content)}]
        if message["role"] == "tool" and not self._knows_results:
            content = [{"type": "text", "text": RESULT.format(plain(content))}]
        parts = [part | {"text": self._cut(part["text"], mark)} if part["type"] == "text" else part for part in content]
        # some templates look at the first part whatever it is
        return (parts or [{"type": "text", "text": ""}]) if self.reads_parts else plain(parts)

    @cached_property
    def _knows_results(self) -> bool:
        """Whether results of tools are put into a form by the template itself."""
        if self.tokenizer.chat_template is None:
            return False
        content: Any = [{"type": "text", "text": "a"}] if self.reads_parts else "a"
        return knows_results(
            self.path, self.tokenizer, [{"role": role, "content": content} for role in ("user", "assistant", "tool")]
        )

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

    def _encode(
        self, text: str, mark: str, images: Sequence[Image], videos: Sequence[Video], before: Sequence[int] = ()
    ) -> Encoded:
        import torch

        from burnish.types.completion import Encoded

        features, *expanded = self._media(images, videos)
        for what, place, texts in zip(("image", "video"), self._marks(), expanded, strict=True):
            text = filled(self.path, text, place, texts, what) if place else text
        ids = torch.tensor([*before, *self._ids(text, mark)], dtype=torch.long)
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
        from burnish.language.embedding import fill
        from burnish.types.completion import Features

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
        states: Tensor = out.last_hidden_state[0]
        return states

    def head(self, network: nn.Module) -> Tensor:
        head: Any = network.get_output_embeddings()  # type: ignore[operator]
        weight: Tensor = head.weight
        return weight

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


def _positions(text: Any) -> int:
    """Positions that a decoder was made for, stretched ones included."""
    rope = getattr(text, "rope_parameters", None) or {}
    factor, original = rope.get("factor") or 1.0, rope.get("original_max_position_embeddings")
    most: int = text.max_position_embeddings
    if rope.get("rope_type") == "linear":
        return int(most * factor)
    return max(most, int(original * factor)) if original else most


@contextmanager
def quietly() -> Iterator[None]:
    """Without the bars of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
