"""Any language model that transformers loads, by its own class and its own processor: no code per family."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from burnish.language.model.base import NOTHING, Positions, Shown
from burnish.language.model.chat import CUT, ChatTokenizer
from burnish.language.model.processors import COMBINED, IMAGES, audio_rate_of, image_tokens, load_processor
from burnish.language.model.reward_head import HEAD
from burnish.language.model.tokenizer import TEMPLATE, read_tokenizer
from burnish.models.lora import save_for_peft
from burnish.models.placing import load_mapped, place
from burnish.registry import register
from burnish.rewards.text.base import Response
from burnish.utils.errors import UserError
from burnish.utils.weights import Agreed, own_config, quietly, refuse_non_finite

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from burnish.language.logprobs import Head
    from burnish.language.model.base import Audio, Chat, Tools
    from burnish.language.model.capabilities import Capabilities
    from burnish.language.model.forwards import Collation, Inputs
    from burnish.types.completion import Encoded, Features

log = logging.getLogger(__name__)

SEEN = ("image", "video", "audio", "media", "vision")  # in names of the ids that stand for media in config.json
UNLIMITED = 2**31  # positions
SHORTEST = 1.0  # seconds of a sound
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf", ".index.json")


@register("language model", "transformers")
class LanguageModel:
    """Runs the class's own forward; what is made of it beside one unpadded row is compared with that on load."""

    guidance = 1.0  # scale of classifier-free guidance, of which each response has a second row unless it is 1
    length: int | None = None  # tokens of every response, where all have as many
    unread_parts: tuple[str, ...] = ()  # prefixes of parameters that no response depends on

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        import torch

        from burnish.language.model.capabilities import Capabilities
        from burnish.language.model.forwards import Forwards, loses
        from burnish.types.completion import Features

        self.path, self.tokenizer = path, tokenizer
        self.compute = compute  # precision of the forward pass
        self.network = network
        self.device = next(network.parameters()).device  # where it computes; ``load`` places it there afterwards
        self.config: Any = network.config
        text = self.config.get_text_config()
        self.processor: Any = load_processor(path)
        # samples per second of the sounds that it hears; None: it hears none
        self.audio_rate = None if self.processor is None else audio_rate_of(self.processor)
        reader = getattr(self.processor, "video_processor", None)
        # of a video at least: some take as many of it, and give up where it has fewer
        self.least_frames: int = (getattr(reader, "do_sample_frames", False) and getattr(reader, "num_frames", 0)) or 0
        self.placeholders = torch.tensor(self._placeholders(), dtype=torch.long)  # [K] ids of vision tokens
        self.chat = ChatTokenizer(
            path, tokenizer, vision=len(self.placeholders) > 0, placeholders=self._placeholder_texts(),
            reads_parts=self.processor is not None,
        )  # fmt: skip
        # [K] ids that are never sampled; a placeholder may have no place among the logits (Mllama)
        self.banned = self.placeholders[self.placeholders < text.vocab_size]
        stop = self._stop_ids()
        self.end = self.chat.turn_end(stop)  # the ids that the chat template writes after a response
        self.stop = tuple(dict.fromkeys([*stop, self.end[-1]]))  # ids that end a response
        self.vocabulary: int = text.vocab_size
        # tokens that its embedding knows, of which some may never be sampled
        self.readable_ids = max(self.vocabulary, network.get_input_embeddings().weight.shape[0])
        # the limit of a prompt with its response, and what that is called in its configuration
        self.max_positions, self.position_limit = positions_within(text)
        self.single_forward = False
        self._nested = True  # whether images are given in a list for each prompt
        self.unread: dict[str, str] = {}  # what it says of prompts with media of a kind, or of text alone
        pad = tokenizer.pad_token_id  # which may have been added to the tokenizer alone
        pad = self.stop[0] if pad is None or pad in self.banned.tolist() or pad >= self.readable_ids else pad
        self.forwards = Forwards(network, self._learn_media(), self.embed, pad=pad, compute=compute)
        # the processor loses images beside videos
        self._one_kind = {"image", "video"} <= self.readable and loses(self._processed, self._asked, self.least_frames)
        self._counts = self._counts_images()
        decoder = self.text(network)
        # weights that each token is multiplied with, and multiplications per pair of tokens
        self.parameters_per_token = sum(parameter.numel() for parameter in decoder.parameters())
        layers = getattr(text, "num_hidden_layers", len(self.layers(network)))  # BLT names none for all of its parts
        self.attention_width = layers * getattr(text, "hidden_size", network.get_input_embeddings().weight.shape[-1])
        self.axes = 3  # numbers per position: for time, height and width, or 1 along the text
        self.axes = len(self._positions(torch.tensor(self.stop[:1] * 2), Features()))
        self.own_attention = True  # where it agrees, in place of the class's
        self.capabilities = Capabilities()  # beside a forward of one row: see ``try_out``

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

        with quietly("transformers"):
            network = cls._network(path, dtype)
        network.requires_grad_(False).eval()
        model = cls(path, network, read_tokenizer(path), compute=compute)
        model.device = torch.empty(0, device=device).device
        return model

    def place(self) -> None:
        """Move the network to the device, in the precision that its weights rest in."""
        place(self.network, self.device)
        self.refuse_non_finite()

    def refuse_non_finite(self, agreed: Agreed = lambda found: found) -> None:
        """Refuse NaN or infinite weights; see ``burnish.utils.weights``."""
        refuse_non_finite(self.network, self.path, agreed)

    def best(self) -> Capabilities:
        """What its first layers can do in float32: in half precision rounding hides what another attention gives."""
        from unittest.mock import patch

        import torch
        from transformers.integrations import hub_kernels

        from burnish.models.placing import place

        precision, network = torch.get_float32_matmul_precision(), self.first_layers()
        place(network, self.device)
        for value in (*network.parameters(), *network.buffers()):
            if value.is_floating_point():  # some are integers, some complex
                value.data = value.float()
        torch.set_float32_matmul_precision("highest")
        # kernels of other packages may take no float32 (flash-linear-attention): not for export either
        plain = patch.object(hub_kernels, "is_torchdynamo_exporting", lambda: True)
        try:
            with plain, self.instead(network, torch.float32):
                return self.checked()
        finally:
            torch.set_float32_matmul_precision(precision)

    def try_out(self, best: Capabilities | None = None) -> None:
        """Find out how the network can be run, of what is best for it; without that it is in float32."""
        from burnish.language.model.forwards import switch
        from burnish.models.placing import is_placed, place

        network = self.network
        if not is_placed(network, self.device):  # ranks will share it: a copy for this, which goes again
            network = self.first_layers()
            place(network, self.device)
        with self.instead(network, self.compute):
            self.capabilities = self.checked(best)
        if self.capabilities.packed:
            switch(self.network, self.text(self.network), on=True, tower=not self.capabilities.unpacked)

    @contextmanager
    def instead(self, network: Any, compute: torch.dtype) -> Iterator[None]:
        """A context in which another network takes the place of its own, in a precision."""
        own = self.network, self.compute
        self.network, self.compute, self.forwards.compute = network, compute, compute
        try:
            yield
        finally:
            self.network, self.compute = own
            self.forwards.compute = self.compute

    def checked(self, best: Capabilities | None = None) -> Capabilities:
        """What it can do, as compared with its class; see ``capabilities``."""
        from unittest.mock import patch

        from burnish.language.model.capabilities import check
        from burnish.language.model.forwards import FIRST, indexers

        if indexers(self.network):
            # one token, so that prompts that are tried are long enough for an indexer to leave some out
            with patch.object(FIRST, "most", 1), suppress(UserError):
                return check(self, best)
        return check(self, best)  # in half precision rounding may choose another one

    def first_layers(self) -> Any:
        """A copy of the network with its first layers, among them one of each kind: no GPU may have room for all."""
        from burnish.models.placing import twin

        found: Any = twin(self.network)
        layers = self.layers(found)
        types = getattr(found.config.get_text_config(), "layer_types", None) or [""] * len(layers)
        kinds = [(types[i], frozenset(map(type, layer.modules()))) for i, layer in enumerate(layers)]
        del layers[max(1, *map(kinds.index, kinds)) + 1 :]  # two at least
        return found

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoModelForSeq2SeqLM

        from burnish.language.model.forwards import settle_ties

        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        if getattr(config, "is_encoder_decoder", False):
            raise UserError(f"{path} is an encoder with a decoder; Burnish trains decoders: give another model")
        kinds: tuple[Any, ...] = (AutoModelForMultimodalLM, AutoModelForCausalLM, AutoModelForSeq2SeqLM)
        # Audio Flamingo 3 stands among the last alone
        kind = next((kind for kind in kinds if type(config) in kind._model_mapping), None)
        if kind is None:
            raise UserError(
                f"{path} has model_type {config.model_type}, for which transformers has no model that writes text; "
                "give a language model"
            )
        network = load_mapped(kind, path, dtype=dtype, trust_remote_code=False)
        settle_ties(network)
        # it may be its decoder's, and not named by the class (NemotronH Omni)
        if network.get_output_embeddings() is None and hasattr(network, "language_model"):
            network.get_output_embeddings = network.language_model.get_output_embeddings
        return network

    # Text

    def _placeholder_texts(self) -> tuple[str, ...]:
        """What the template writes for media."""
        if self.processor is None:
            return ()
        self.processor.tokenizer.add_tokens([CUT], special_tokens=True)
        named = [getattr(self.processor, f"{kind}_token", None) for kind in SEEN]
        return tuple(token for token in named if isinstance(token, str))

    def _placeholders(self) -> list[int]:
        if self.processor is None:
            return []
        told = [self.config.to_dict(), self.config.get_text_config().to_dict()]
        for config in told:  # Phi-4 has the ids of its media in the configurations of its towers
            told += [inner for inner in config.values() if isinstance(inner, dict)]
        ids = {
            value
            for config in told
            for name, value in config.items()
            if isinstance(name, str) and name.endswith(("_id", "_index")) and any(kind in name for kind in SEEN)
        }  # Molmo 2 has image_patch_id
        return sorted(value for value in ids if isinstance(value, int) and value >= 0)

    def encode(self, messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        """Tokenize one prompt, with the generation prompt at its end. The processor runs here and nowhere else.

        Args:
            messages: the conversation so far.
            shown: what the messages have places for; sounds at ``audio_rate``.
            tools: for chat templates that describe tools.

        Raises:
            UserError: the processor can't read the media, or the chat template refuses the messages.
        """
        if "text" in self.unread and not (shown.images or shown.videos or shown.audios):
            raise UserError(
                f"{self.path} takes no prompt of text alone ({self.unread['text']}); give each an image or sound"
            )
        return self._encode(self.chat.render(messages, tools), shown, before=self.chat.opening)

    def count_tokens(self, messages: Chat, tools: Tools = ()) -> int:
        """Tokens of a prompt without running the processor: each image and video counts as one."""
        return len(self.chat.opening) + len(self.chat.ids(self.chat.render(messages, tools)))

    def turn(self, response: Sequence[int], messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        """What follows a response when the environment says ``messages``; its positions count from 0."""
        from burnish.types.completion import Encoded

        for kind in shown.sizes:
            if not self.forwards.collation.appends.get(kind, False):
                raise UserError(
                    f"an environment shows a {kind} in a later turn, but the processor of {self.path} processes all "
                    f"{kind}s of a conversation together, so that none can follow; give environment.history=template, "
                    "which reads the conversation anew for every turn"
                )
        encoded = self._encode(self.chat.after(messages, tools), shown)
        ids, positions, features = encoded.ids[0], encoded.positions[0], encoded.features[0]
        begins = ids[: len(self.end)].tolist()
        ended = 0  # tokens of the response's end that it contains already
        if len(response) and response[-1] in self.stop and response[-1] in begins:
            ended = begins.index(response[-1]) + 1
        kinds = {name: kind[ended:] for name, kind in features.kinds.items()}
        return Encoded(
            ids=[ids[ended:]], positions=[positions[:, ended:] - ended], features=[replace(features, kinds=kinds)]
        )

    def response_ids(self, text: str) -> list[int]:
        """The ids of a response, its end included."""
        return [*self.chat.response_ids(text), *self.end]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a response, without special tokens."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)  # type: ignore[no-any-return]

    def response(self, ids: Sequence[int], ended: bool) -> Response:
        """What tokens say; ``ended`` says that they are complete."""
        return Response(self.decode(ids), finished=ended)

    def _stop_ids(self) -> tuple[int, ...]:
        text = self.config.get_text_config()
        for source in (getattr(self.network, "generation_config", None), text, self.tokenizer):
            named = getattr(source, "eos_token_id", None)
            every = named if isinstance(named, list | tuple) else [] if named is None else [named]
            if writable := tuple(token for token in every if token < text.vocab_size):
                return writable
        raise UserError(
            f"{self.path} names no end-of-text token that it can write; set eos_token_id in its generation_config.json"
        )

    def _encode(self, text: str, shown: Shown, before: Sequence[int] = ()) -> Encoded:
        import torch

        from burnish.language.model.forwards import kinds_of, media_of
        from burnish.types.completion import Encoded, Features

        self._refuse_unread(shown)
        if self.processor is None:
            ids, features = torch.tensor([*before, *self.chat.ids(text)], dtype=torch.long), Features()
        else:
            shown = replace(shown, audios=[_lengthened(audio) for audio in shown.audios])
            found = self._processed([text], [shown])
            ids = found["input_ids"][0].long()
            kept = ids != self.processor.tokenizer.convert_tokens_to_ids(CUT)
            kinds = {name: kind[kept] for name, kind in kinds_of(found).items()}
            aligned, within = self.forwards.collation.per_token, self.forwards.collation.within
            media = {n: value[:, kept] if n in aligned else value for n, value in media_of(found).items()}
            axes = {name: within[name] for name in media if name in within}
            ids, features = ids[kept], Features(media, axes, kinds, shown.sizes)
        return Encoded(ids=[ids], positions=[self._positions(ids, features)], features=[features])

    def _refuse_unread(self, shown: Shown) -> None:
        for kind in shown.sizes:
            if kind not in self.readable:
                raise UserError(
                    f"{self.path} reads no prompts with {kind}s, which its processor did not take when it was tried "
                    f"({self.forwards.collation.refused.get(kind, 'it leaves them out')}); give a model that does, or "
                    "remove them from prompts and environments"
                )
            if kind in self.unread:
                raise UserError(
                    f"{self.path} can't read what a prompt brings as {kind}: the model and its processor, which is "
                    f"configured by {COMBINED} or {IMAGES}, don't go together: {self.unread[kind]}; fetch both again "
                    "from one place"
                )
        if shown.images and shown.videos and self._one_kind:
            raise UserError(
                f"a prompt has images and videos, of which the processor of {self.path} returns one kind alone; give "
                "prompts of either"
            )

    def _positions(self, ids: Tensor, features: Features) -> Tensor:
        """Positions [A, L] of tokens [L], from 0: time, height and width, or one along the text."""
        import torch

        if self.axes > 1 and "position_ids" in self.forwards.accepted:
            inputs = {"attention_mask": torch.ones_like(ids)[None], **features.tensors}
            inputs |= {name: kinds[None] for name, kinds in features.kinds.items()}
            found = self.network._prepare_position_ids_for_generation(ids[None], inputs)
            # Reformer has none for its first tokens; where there are four, the first counts along the text
            if found is not None and found.ndim == 3:
                return found[-3:, 0].long()  # type: ignore[no-any-return]
        return torch.arange(len(ids))[None]

    def _processed(self, texts: list[str], shown: Sequence[Shown]) -> Inputs:
        """What the processor returns for texts with their media."""
        from burnish.language.model.forwards import accepted

        given: Inputs = {}
        if any(own.images for own in shown):
            # in a list per prompt: some treat an image that is alone in its prompt otherwise than several
            images = [[image.convert("RGB") for image in own.images] for own in shown]
            given["images"] = images if self._nested else [image for own in images for image in own]
        if videos := [video for own in shown for video in own.videos]:
            given["videos"] = [video.frames for video in videos]
            given["video_metadata"] = [
                {
                    "total_num_frames": len(video.frames), "fps": video.fps, "duration": len(video.frames) / video.fps,
                    "height": video.frames.shape[1], "width": video.frames.shape[2],
                    "frames_indices": list(range(len(video.frames))),
                }
                for video in videos
            ]  # fmt: skip
            if videos[0].chosen:
                given["do_sample_frames"] = False
        if audios := [audio for own in shown for audio in own.audios]:
            given |= {"audio": [audio.samples for audio in audios], "sampling_rate": self.audio_rate}
        if self.tokenizer.chat_template is not None:
            given["add_special_tokens"] = False  # the template has written them
        if "mm_token_type_ids" in accepted(type(self.network)):  # some processors return them only when asked
            given["return_mm_token_type_ids"] = True
        # for the text alone: sounds are padded as their part of the processor does by itself
        found: Inputs = dict(self.processor(text=texts, text_kwargs={"padding": True}, return_tensors="pt", **given))
        return found

    @property
    def readable(self) -> frozenset[str]:
        """Kinds of media that the processor was seen to read."""
        return frozenset(self.forwards.collation.appends)

    def _learn_media(self) -> Collation:
        """How the processor joins media, from a few of its own batches."""
        from burnish.language.model.forwards import Collation, learn

        if self.processor is None:
            return Collation()
        collation = learn(self._asked, self._processed, self.audio_rate, self.least_frames)
        if "image" not in collation.appends and hasattr(self.processor, "image_processor"):
            self._nested = False  # lists of lists are pages of one image for GOT-OCR 2
            collation = learn(self._asked, self._processed, self.audio_rate, self.least_frames)
        return collation

    def _asked(self, kinds: Sequence[str]) -> str:
        """A prompt's text with media of these kinds."""
        parts = [*({"type": kind} for kind in kinds), {"type": "text", "text": "What is it?"}]
        return self.chat.render([{"role": "user", "content": parts}])

    def _counts_images(self) -> bool:
        """Whether the processor tells the tokens of an image from its size, as seen of a few."""
        from burnish.language.model.forwards import samples

        if "image" not in self.readable:
            return False
        text = self._asked(["image"])
        around = len(self.chat.ids(text)) - 1

        def tells(image: Any) -> bool:
            ids = self._processed([text], [Shown(images=[image])])["input_ids"]
            return bool(ids.shape[1] - around == image_tokens(self.processor, *image.size))

        try:
            return all(map(tells, samples("image")))
        except Exception:  # which a processor may raise of anything
            return False

    def image_tokens(self, width: int, height: int) -> int | None:
        """Tokens of an image by its size alone, by the processor's own arithmetic; None if only pixels tell."""
        return image_tokens(self.processor, width, height) if self._counts else None

    # The network

    def text(self, network: nn.Module) -> Any:
        """The decoder, without the language head."""
        from transformers import PreTrainedModel

        decoder: Any = network.get_decoder()  # type: ignore[operator]
        if not isinstance(decoder, PreTrainedModel):  # it looks for a name, under which some have their head
            decoder = network.base_model
        while decoder.get_output_embeddings() is not None:  # of some classes it has a head of its own
            decoder = decoder.model
        return decoder

    def layers(self, network: nn.Module) -> Any:
        """The ``ModuleList`` of the decoder's layers, in order."""
        from torch.nn import ModuleList

        return max((module for module in self.text(network).modules() if isinstance(module, ModuleList)), key=len)

    def require_single_forward(self) -> None:
        """Run every micro-batch in one forward pass from now on: ranks that share weights run their layers together.

        Raises:
            UserError: the model can't.
        """
        known = self.capabilities
        if not (known.packed or (known.padded and known.mixes)):
            raise UserError(
                f"{type(self.network).__name__} can't have all prompts of a micro-batch in one forward, which sharded "
                "weights and router losses need; train it in one process, without model.router_aux_loss_coef"
            )
        self.single_forward = True

    def require_split(self) -> None:
        """Refuse a model whose sequences ranks can't split, and tell which prompts they don't.

        Raises:
            UserError: the model can't.
        """
        known, name = self.capabilities, type(self.network).__name__
        if not known.packed:
            raise UserError(
                f"sharding.context_parallel is given, but ranks split sequences of packed rows alone, and {name} has "
                f"{known.name}; set it to 1"
            )
        if known.unpacked:
            log.warning("%s: ranks don't split prompts with %s", name, ", ".join(sorted(known.unpacked)))

    def packs(self, features: Sequence[Features]) -> bool:
        """Whether prompts with these media are packed."""
        known = self.capabilities
        return known.packed and not any(known.unpacked & one.tensors.keys() for one in features)

    @property
    def keeps_turns(self) -> bool:
        """Whether decoding can go on from what it has computed of a conversation (``decode``'s ``turn``)."""
        return self.capabilities.fast and self.capabilities.packed

    @property
    def members(self) -> int:
        """Rows of a forward for each response."""
        return 1 if self.guidance == 1 else 2

    def paired(self, prompts: Encoded) -> Encoded:
        """Prompts, and behind all of them what guidance reads beside each."""
        return prompts

    def joined(self, values: Tensor) -> Tensor:
        """Guided values [B, ...] of those of paired rows [2 B, ...], such as logits; of unguided rows the same."""
        return values

    def embed(self, network: Any, ids: Tensor) -> Tensor:
        """Embeddings [.., D] of ids [..]."""
        embeddings: Tensor = network.get_input_embeddings()(ids)
        return embeddings

    def predicting(self, network: Any, states: Tensor) -> Tensor:
        """What the head's product is given for states [N, D]."""
        return states

    def head(self, network: Any) -> Head:
        """The language head."""
        from burnish.language.logprobs import Head

        return Head(network.get_output_embeddings().weight, self.capabilities.scale, self.capabilities.cap)

    def save(self, folder: Path, weights: dict[str, Tensor], *, head: Tensor | None = None) -> None:
        """Write the full model directory with other weights, as transformers' ``from_pretrained`` reads it.

        ``head`` is the one of a reward model.
        """
        import torch

        with torch.device("meta"):
            # not from the network's configuration, which names Burnish's attention
            plain: Any = type(self.network)(own_config(type(self.network), self.path))
        vars(plain.config).pop("quantization_config", None)  # which has been undone
        plain.load_state_dict(weights, assign=True)
        with quietly("transformers"):
            plain.tie_weights(missing_keys=set())  # but not a head of its own, whatever config.json says
            own = {} if head is None else {HEAD: head.detach().float().cpu()}
            plain.save_pretrained(folder, state_dict=plain.state_dict() | own)
        # how to generate stays as it is: transformers refuses to write values that it reads
        written = {path.name for path in folder.iterdir()} - {"generation_config.json"}
        for path in sorted(self.path.iterdir()):
            kept = path.name == TEMPLATE[1] or (path.is_file() and not path.name.endswith(WEIGHTS))
            if kept and path.name not in written:
                (shutil.copytree if path.is_dir() else shutil.copyfile)(path, folder / path.name)

    def save_lora(self, folder: Path, adapter: str) -> None:
        """Write an adapter as peft's ``from_pretrained`` reads it."""
        save_for_peft(self.network, folder, adapter)


def _lengthened(audio: Audio) -> Audio:
    """A sound with silence behind it, if it is short: some classes hear it otherwise beside others (Qwen3-Omni)."""
    import numpy

    missing = max(round(SHORTEST * audio.rate) - len(audio.samples), 0)
    return replace(audio, samples=numpy.pad(audio.samples, (0, missing)))


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
    factor = rope.get("factor") or 1.0
    original = most if rope.get("rope_type") == "linear" else rope.get("original_max_position_embeddings")
    return Positions(max(most, int(original * factor)) if original else most, "max_position_embeddings")
