"""Language models of transformers: tokens, forward passes, loading and saving. Families override what differs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from burnish.language.model import NOTHING, Positions, Shown
from burnish.models.language.chat import ChatTokenizer, joined
from burnish.models.lora import adapter_state
from burnish.models.placing import place
from burnish.utils.errors import UserError
from burnish.utils.weights import Agreed, own_config, refuse_non_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from burnish.language.head import Head
    from burnish.language.model import Chat, Tools
    from burnish.types.completion import Encoded

UNLIMITED = 2**31  # positions
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".index.json")


class TransformersModel:
    """A causal language model from a directory in transformers layout."""

    name: ClassVar[str]
    model_types: ClassVar[tuple[str, ...]]  # model_type in config.json that this family reads
    has_vision: ClassVar[bool] = False
    axes = 1
    placeholder_texts: tuple[str, ...] = ("", "")  # that chat templates write for an image and for a video
    audio_rate: int | None = None
    reads_parts = True  # chat templates read messages of parts; False joins their texts

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        import torch

        self.path, self.network, self.tokenizer, self.compute = path, network, tokenizer, compute
        self.device = next(network.parameters()).device  # where it computes; ``load`` places it there afterwards
        self.config: Any = network.config
        text = self.config.get_text_config()
        self._read_processors()
        placeholders = self._placeholders()
        self.chat = ChatTokenizer(
            path,
            tokenizer,
            vision=bool(placeholders),
            placeholders=self.placeholder_texts,
            reads_parts=self.reads_parts,
        )
        self.placeholders = torch.tensor(placeholders, dtype=torch.long)
        # a placeholder may have no place among the logits (Mllama)
        self.banned = self.placeholders[self.placeholders < text.vocab_size]
        stop = self._stop_ids()
        self.end = self.chat.turn_end(stop)
        self.stop = tuple(dict.fromkeys([*stop, self.end[-1]]))
        self.vocabulary: int = text.vocab_size
        self.readable_ids = max(self.vocabulary, network.get_input_embeddings().weight.shape[0])
        self.max_positions, self.position_limit = positions_within(text)

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, compute: torch.dtype, device: str) -> Self:
        """Read a directory.

        Args:
            path: with config.json, weights, tokenizer, and a processor for vision-language models.
            dtype: precision of the weights.
            compute: precision of the forward pass.
            device: where the network goes; it is not there yet, see ``place``.
        """
        import torch
        from transformers import AutoTokenizer

        from burnish.language.norms import shorten_backward

        with quietly():
            network = cls._network(path, dtype)
        network.requires_grad_(False).eval()
        shorten_backward(network)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        model = cls(path, network, tokenizer, compute=compute)
        model.device = torch.empty(0, device=device).device
        return model

    def place(self) -> None:
        """Move the network to the device, in the precision that its weights rest in."""
        place(self.network, self.device)
        self.refuse_non_finite()

    def refuse_non_finite(self, agreed: Agreed = lambda found: found) -> None:
        """Refuse NaN or infinite weights; see ``burnish.utils.weights``."""
        refuse_non_finite(self.network, self.path, agreed)

    def try_out(self) -> None:
        """Find out how the network can be run; a family knows."""

    # What families override

    @classmethod
    def size_problem(cls, width: int, height: int) -> str:
        """Why the processor refuses pictures of a size; "" if it doesn't."""
        return ""

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        """The network of a directory."""
        raise NotImplementedError

    def _encode(self, text: str, mark: str, shown: Shown, before: Sequence[int] = ()) -> Encoded:
        """A text as tokens, split at ``mark``, with its media."""
        raise NotImplementedError

    def _read_processors(self) -> None:
        """Load what converts pictures to pixels."""

    def _placeholders(self) -> list[int]:
        """Ids of vision tokens."""
        return []

    def text(self, network: nn.Module) -> Any:
        return network.get_decoder()  # type: ignore[operator]

    def layers(self, network: nn.Module) -> list[nn.Module]:
        return list(self.text(network).layers)

    def require_single_forward(self) -> None:
        """All do: a micro-batch is one packed sequence."""

    # Text

    def encode(self, messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        text, mark = self.chat.render(messages, tools)
        self._check_sounds(shown)
        return self._encode(text, mark, shown, before=self.chat.opening)

    def _check_sounds(self, shown: Shown) -> None:
        if shown.audios and self.audio_rate is None:
            raise UserError(f"{self.path} can't hear, but a prompt has sounds; remove them, or give a model that can")
        assert all(one.rate == self.audio_rate for one in shown.audios), "sounds at another rate than the model's"

    def refusal(self, messages: Chat, tools: Tools = ()) -> str:
        return self.chat.refusal(messages, tools)

    def count_tokens(self, messages: Chat, tools: Tools = ()) -> int:
        return len(self.chat.opening) + len(self.chat.ids(*self.chat.render(messages, tools)))

    def picture_tokens(self, width: int, height: int) -> int | None:
        return None

    def turn(self, response: Sequence[int], messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        text, mark = self.chat.after(joined(messages), messages, tools)
        self._check_sounds(shown)
        encoded = self._encode(text, mark, shown)
        ids = encoded.ids[0]
        begins = ids[: len(self.end)].tolist()
        if len(response) and response[-1] in self.stop and response[-1] in begins:
            # the response contains its end already
            ended = begins.index(response[-1]) + 1
            encoded.ids[0] = ids[ended:]
            encoded.positions[0] = encoded.positions[0][:, ended:] - ended
        return encoded

    def response_ids(self, text: str) -> list[int]:
        return [*self.chat.response_ids(text), *self.end]

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def _stop_ids(self) -> tuple[int, ...]:
        generation = getattr(self.network, "generation_config", None)
        for source in (generation, self.config.get_text_config(), self.tokenizer):
            found = getattr(source, "eos_token_id", None)
            if found is not None:
                return tuple(found) if isinstance(found, list | tuple) else (found,)
        raise UserError(f"{self.path} names no end-of-text token; set eos_token_id in its generation_config.json")

    # The network

    def head(self, network: nn.Module) -> Head:
        from burnish.language.head import Head

        head: Any = network.get_output_embeddings()  # type: ignore[operator]
        return Head(head.weight)

    def _autocast(self, device: torch.device) -> Any:
        import torch

        # a forward uses each weight once; a cache of the cast ones would only keep a second network until it ends
        return torch.autocast(device.type, self.compute, enabled=self.compute != torch.float32, cache_enabled=False)

    def save(self, folder: Path, weights: dict[str, Tensor]) -> None:
        import torch

        with torch.device("meta"):
            # not from the network's configuration, which names Burnish's attention
            plain = type(self.network)(own_config(type(self.network), self.path))
        plain.load_state_dict(weights, assign=True)
        plain.tie_weights()
        with quietly():
            plain.save_pretrained(folder)
        # how to generate stays as it is: transformers refuses to write values that it reads
        written = {path.name for path in folder.iterdir()} - {"generation_config.json"}
        for path in sorted(self.path.iterdir()):
            if path.is_file() and path.name not in written and not path.name.endswith(WEIGHTS):
                shutil.copyfile(path, folder / path.name)

    def save_lora(self, folder: Path, adapter: str) -> None:
        from safetensors.torch import save_file

        weights, metadata = adapter_state(self.network, adapter)
        folder.mkdir(parents=True, exist_ok=True)
        named = {f"base_model.model.{name}": value.detach().cpu().contiguous() for name, value in weights.items()}
        save_file(named, folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(metadata, indent=2, default=str) + "\n")


def positions_within(text: Any) -> Positions:
    """How many positions a decoder supports, with RoPE scaling, and by which entry of its configuration.

    Dynamic scaling and LongRoPE turn all tokens of a row by other angles as soon as it is longer than a limit, also
    those before: what was sampled until then would have other log-probs. Rows end there.
    """
    most: int = getattr(text, "max_position_embeddings", UNLIMITED)  # recurrent models count no positions
    most = most if most > 0 else UNLIMITED  # -1 of XLNet
    rope = getattr(text, "rope_parameters", None) or {}
    found = []
    for one in [one for one in rope.values() if isinstance(one, dict)] or [rope]:  # some have one per type of layer
        if one.get("rope_type") == "dynamic":
            found.append(Positions(most, "max_position_embeddings, from which on its dynamic RoPE changes"))
        elif one.get("rope_type") == "longrope" and (original := one.get("original_max_position_embeddings")):
            found.append(Positions(original, "original_max_position_embeddings, from which on its LongRoPE changes"))
    if found:
        return min(found)
    factor, original = rope.get("factor") or 1.0, rope.get("original_max_position_embeddings")
    if rope.get("rope_type") == "linear":
        return Positions(int(most * factor), "max_position_embeddings")
    return Positions(max(most, int(original * factor)) if original else most, "max_position_embeddings")


@contextmanager
def quietly() -> Iterator[None]:
    """Without progress bars of transformers."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()
