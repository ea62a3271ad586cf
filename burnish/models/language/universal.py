"""Any language model that transformers loads, by its own class and its own processor: no code per family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from burnish.language.model import NOTHING, Shown
from burnish.models.language.base import TransformersModel
from burnish.models.language.processors import COMBINED, PICTURES, audio_rate_of, load_processor
from burnish.models.placing import load_mapped
from burnish.registry import register
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from burnish.language.attention import Plan
    from burnish.language.decoding import DecodingRows
    from burnish.language.head import Head
    from burnish.language.logprobs import ResponseStates
    from burnish.language.model import Chat, Embedded, Tools, Video
    from burnish.language.rows import Layout
    from burnish.models.language.own.collation import Collation, Inputs
    from burnish.types.completion import Completion, Encoded, Features

CUT = "\ue0f0\ue0f1"  # a token where texts are split before they become tokens; it is taken out again
SEEN = ("image", "video", "audio", "media", "vision")  # in names of the ids that stand for media in config.json


@register("language model", "transformers")
class UniversalModel(TransformersModel):
    """Runs the class's own forward; what is made of it beside one unpadded row is compared with that on load."""

    name = "transformers"
    model_types: ClassVar[tuple[str, ...]] = ()  # all that transformers knows
    always_run_vision = False

    def __init__(self, path: Path, network: Any, tokenizer: Any, *, compute: torch.dtype) -> None:
        from burnish.models.language.own.checks import Tiers
        from burnish.models.language.own.forwards import Forwards

        self.path, self.config = path, network.config
        super().__init__(path, network, tokenizer, compute=compute)
        self._within: dict[str, int] = {}  # axis along which further media of a prompt follow, by name of a tensor
        self._appends: dict[str, bool] = {}  # whether media of later turns can follow those before, by kind
        self._single_forward = False
        self._nested = True  # whether pictures are given in a list for each prompt
        self.unread: dict[str, str] = {}  # what it says of prompts with media of a kind, or of text alone
        self.least_audio = 0.0  # seconds; shorter sounds get silence behind them
        collation = self._learn_media()
        pad = tokenizer.pad_token_id
        pad = self.stop[0] if pad is None or pad in self.banned.tolist() else pad
        self.forwards = Forwards(network, collation, pad=pad, compute=compute)
        decoder, text = self.text(network), self.config.get_text_config()
        self.parameters_per_token = sum(parameter.numel() for parameter in decoder.parameters())
        layers = getattr(text, "num_hidden_layers", len(self.layers(network)))  # BLT names none for all of its parts
        self.attention_width = layers * getattr(text, "hidden_size", network.get_input_embeddings().weight.shape[-1])
        self.axes = self._count_axes()
        self.tiers = Tiers()  # what the class can do beside one unpadded row: see ``try_out``

    def try_out(self) -> None:
        from burnish.models.language.own.captured import switch
        from burnish.models.language.own.checks import check
        from burnish.models.placing import is_placed, place, twin

        network = self.network
        if not is_placed(network, self.device):  # ranks will share it: a copy for this, which goes again
            self.network = twin(network)
            place(self.network, self.device)
        try:
            self.tiers = check(self)
        finally:
            self.network = network
        if self.tiers.packed:
            switch(self.text(network), on=True)

    @classmethod
    def _network(cls, path: Path, dtype: torch.dtype) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMultimodalLM, AutoModelForSeq2SeqLM

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
        return load_mapped(kind, path, dtype=dtype, trust_remote_code=False)

    # Text

    def _read_processors(self) -> None:
        self.processor = load_processor(self.path)
        self.reads_parts = self.processor is not None
        if self.processor is not None:
            named = [getattr(self.processor, f"{kind}_token", None) for kind in SEEN]
            self.audio_rate = audio_rate_of(self.processor)
            self.placeholder_texts = tuple(token for token in named if isinstance(token, str))
            self.processor.tokenizer.add_tokens([CUT], special_tokens=True)

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
        if "text" in self.unread and not (shown.images or shown.videos or shown.audios):
            raise UserError(
                f"{self.path} takes no prompt of text alone ({self.unread['text']}); give each a picture or sound"
            )
        return super().encode(messages, shown, tools)

    def turn(self, response: Sequence[int], messages: Chat, shown: Shown = NOTHING, tools: Tools = ()) -> Encoded:
        for kind, media in (("image", shown.images), ("video", shown.videos), ("audio", shown.audios)):
            if len(media) and not self._appends.get(kind, False):
                raise UserError(
                    f"an environment shows a {kind} in a later turn, but the processor of {self.path} processes all "
                    f"{kind}s of a conversation together, so that none can follow; give environment.history=template, "
                    "which reads the conversation anew for every turn"
                )
        encoded = super().turn(response, messages, shown, tools)
        own = encoded.features[0]
        kinds = {name: kind[len(kind) - encoded.lengths[0] :] for name, kind in own.kinds.items()}
        encoded.features[0] = type(own)(own.tensors, own.axes, kinds)
        return encoded

    def _encode(self, text: str, mark: str, shown: Shown, before: Sequence[int] = ()) -> Encoded:
        import torch

        from burnish.models.language.own.collation import kinds_of, media_of
        from burnish.types.completion import Encoded, Features

        if self.processor is None:
            if shown.images or shown.videos:
                raise UserError(f"{self.path} reads text only, but a prompt has images or videos; remove them")
            ids, features = torch.tensor([*before, *self.chat.ids(text, mark)], dtype=torch.long), Features.none()
        else:
            self._refuse_unread(shown)
            found = self._processed([text.replace(mark, CUT)], [shown])
            ids = found["input_ids"][0].long()
            self._refuse_dropped(text.replace(mark, CUT), shown, found)
            kept = ids != self.processor.tokenizer.convert_tokens_to_ids(CUT)
            kinds = {name: kind[kept] for name, kind in kinds_of(found).items()}
            aligned = self.forwards.collation.per_token
            media = {n: value[:, kept] if n in aligned else value for n, value in media_of(found).items()}
            ids, features = ids[kept], Features(media, {n: self._within[n] for n in media if n in self._within}, kinds)
        return Encoded(ids=[ids], positions=[self._positions(ids, features)], features=[features])

    def _refuse_unread(self, shown: Shown) -> None:
        for kind, media in (("image", shown.images), ("video", shown.videos), ("audio", shown.audios)):
            if media and kind in self.unread:
                raise UserError(
                    f"{self.path} can't read what a prompt brings as {kind}: the model and its processor, which is "
                    f"configured by {COMBINED} or {PICTURES}, don't go together: {self.unread[kind]}; fetch both again "
                    "from one place"
                )

    def _refuse_dropped(self, text: str, shown: Shown, found: Inputs) -> None:
        """Refuse what a processor without a part for it has left out without a word, as Gemma 3's does with videos."""
        from burnish.models.language.own.collation import media_of

        for kind, media in (("image", shown.images), ("video", shown.videos)):
            if not media or kind in self.readable:
                continue
            try:
                without = self._processed([text], [replace(shown, **{f"{kind}s": ()})])
            except Exception:  # it misses them, so it has read them
                continue
            if set(media_of(without)) == set(media_of(found)) and without["input_ids"].equal(found["input_ids"]):
                raise UserError(
                    f"{self.path} sees no {kind}s: its processor leaves them out; give a model that does, or take them "
                    "out of prompts and environments"
                )

    def _count_axes(self) -> int:
        """Numbers per position of the class: time, height and width, or one along the text."""
        import torch

        if "position_ids" not in self.forwards.accepted:
            return 1
        network: Any = self.network
        ids = torch.tensor([self.stop[:1] * 2])
        found = network._prepare_position_ids_for_generation(ids, {"attention_mask": torch.ones_like(ids)})
        # Reformer has none for its first tokens; where there are four, the first counts along the text
        return 3 if found is not None and found.ndim == 3 else 1

    def _positions(self, ids: Tensor, features: Features) -> Tensor:
        """Positions [A, L] of tokens [L], from 0: what a plan needs of the class's own."""
        import torch

        if self.axes == 1:
            return torch.arange(len(ids))[None]
        inputs = {"attention_mask": torch.ones_like(ids)[None], **features.tensors}
        inputs |= {name: kinds[None] for name, kinds in features.kinds.items()}
        network: Any = self.network
        found: Tensor = network._prepare_position_ids_for_generation(ids[None], inputs)[-self.axes :, 0]
        return found.long()

    def _processed(self, texts: list[str], shown: Sequence[Shown]) -> Inputs:
        """What the processor returns for texts with their media."""
        given: Inputs = {}
        if any(own.images for own in shown):
            # in a list per prompt: some treat a picture that is alone in its prompt otherwise than several
            pictures = [[image.convert("RGB") for image in own.images] for own in shown]
            given["images"] = pictures if self._nested else [image for own in pictures for image in own]
        if videos := [video for own in shown for video in own.videos]:
            given["videos"] = [video.frames for video in videos]
            given["video_metadata"] = [_metadata(video) for video in videos]
            if videos[0].chosen:
                given["do_sample_frames"] = False
        if audios := [audio for own in shown for audio in own.audios]:
            samples = [_at_least(audio.samples, round(self.least_audio * audio.rate)) for audio in audios]
            given |= {"audio": samples, "sampling_rate": self.audio_rate}
        if self.tokenizer.chat_template is not None:
            given["add_special_tokens"] = False  # the template has written them
        processor: Any = self.processor
        # for the text alone: sounds are padded as their part of the processor does by itself
        found: Inputs = dict(processor(text=texts, text_kwargs={"padding": True}, return_tensors="pt", **given))
        return found

    @property
    def readable(self) -> frozenset[str]:
        """Kinds of media that the processor was seen to read."""
        return frozenset(self._appends)

    def _learn_media(self) -> Collation:
        """How the processor joins media, from a few of its own batches."""
        from burnish.models.language.own.collation import Collation
        from burnish.models.language.own.trials import learn_all

        if self.processor is None:
            return Collation()
        learned = partial(learn_all, self.processor, self._ask, self._processed, self.audio_rate)
        collation, self._within, self._appends = learned()
        if "image" not in self._appends and hasattr(self.processor, "image_processor"):
            self._nested = False  # lists of lists are pages of one picture for GOT-OCR 2
            collation, self._within, self._appends = learned()
        return collation

    def _ask(self, kind: str, count: int) -> str:
        """A prompt's text with media of one kind."""
        parts: list[dict[str, str]] = [{"type": kind}] * count + [{"type": "text", "text": "What is it?"}]
        return self.chat.render([{"role": "user", "content": parts}])[0]

    # The network

    def text(self, network: nn.Module) -> Any:
        from transformers import PreTrainedModel

        decoder: Any = network.get_decoder()  # type: ignore[operator]
        if not isinstance(decoder, PreTrainedModel):  # it looks for a name, under which some have their head
            decoder = network.base_model
        while decoder.get_output_embeddings() is not None:  # of some classes it has a head of its own
            decoder = decoder.model
        return decoder

    def layers(self, network: nn.Module) -> list[nn.Module]:
        from torch.nn import ModuleList

        lists = [list(module) for module in self.text(network).modules() if isinstance(module, ModuleList)]
        return max(lists, key=len)

    def require_single_forward(self) -> None:
        if not self.tiers.packed and not (self.tiers.padded and self.forwards.collation.mixes):
            raise UserError(
                f"{type(self.network).__name__} can't have all prompts of a micro-batch in one forward, which sharded "
                "weights and router losses need; train it in one process, without model.router_aux_loss_coef"
            )
        self._single_forward = True

    def response_states(
        self, network: nn.Module, completion: Completion, *, layout: Layout | Literal["auto"]
    ) -> ResponseStates:
        from burnish.models.language.own.forwards import recomputing
        from burnish.models.language.own.scoring import padded_states, shared_states

        tiers, prompts = self.tiers, len(completion.prompts.index.unique())
        if layout != "padded" and self._planned(completion.prompts.rows().features + completion.features):
            from burnish.language.packed import packed_states

            return packed_states(self, network, completion, layout=layout)
        text = not any(own.size or own.kinds for own in completion.features)
        repeated = layout == "shared" or (layout == "auto" and prompts < len(completion))
        if tiers.shared and text and repeated and not self._single_forward and not recomputing(network):
            return shared_states(self.forwards, network, completion, lengths=tiers.cached, counted=tiers.counted)
        return padded_states(
            self.forwards, network, completion,
            fill=tiers.fill, lengths=tiers.scored, logits=tiers.full_logits, single=self._single_forward,
        )  # fmt: skip

    def _planned(self, features: Sequence[Features]) -> bool:
        """Whether prompts with these media run under Burnish's plan."""
        return self.tiers.packed and not any(self.tiers.unplanned & one.tensors.keys() for one in features)

    @property
    def keeps_turns(self) -> bool:
        return self.tiers.fast or self.tiers.goes_on

    def decode_rows(
        self, network: nn.Module, rows: DecodingRows, *, batch_size: int, check_cancelled: Callable[[], None]
    ) -> None:
        from burnish.language.fast_decoding import FastDecoder
        from burnish.models.language.own.anew import Anew
        from burnish.models.language.own.cache import OwnDecoder
        from burnish.models.language.own.collation import Conversation

        if self.tiers.fast and self._planned(rows.prompts.features):
            FastDecoder(self, network, rows).run(batch_size, check_cancelled)
            return

        tiers, prompts, begin = self.tiers, Conversation.prompts(rows.prompts), None
        if tiers.cacheless:
            begin = partial(Anew, self.forwards, network, lengths=tiers.cached, fill=tiers.fill)
        decoder = OwnDecoder(
            self.forwards, network, rows, prompts, lengths=tiers.cached, goes_on=tiers.goes_on, begin=begin
        )
        decoder.run(batch_size, check_cancelled)

    def embed(self, network: nn.Module, ids: Tensor, slots: Tensor, features: Sequence[Features]) -> Embedded:
        from burnish.models.language.own.captured import embedded

        return embedded(self.forwards, network, self.text(network), ids, slots, features)

    def states(self, network: nn.Module, embedded: Embedded, source: Tensor, positions: Tensor, plan: Plan) -> Tensor:
        from burnish.models.language.own.captured import states

        with self._autocast(source.device):
            return states(self.text(network), embedded, source, positions, plan)

    def head(self, network: nn.Module) -> Head:
        from burnish.language.head import Head

        module: Any = network.get_output_embeddings()  # type: ignore[operator]
        return Head(module.weight, self.tiers.scale, self.tiers.cap)


def _at_least(samples: np.ndarray, count: int) -> np.ndarray:
    """Samples [N] with silence behind them, if there are fewer."""
    import numpy

    return samples if len(samples) >= count else numpy.pad(samples, (0, count - len(samples)))


def _metadata(video: Video) -> dict[str, Any]:
    count, height, width = video.frames.shape[:3]
    return {
        "total_num_frames": count, "fps": video.fps, "width": width, "height": height, "duration": count / video.fps,
        "frames_indices": list(range(count)),
    }  # fmt: skip
