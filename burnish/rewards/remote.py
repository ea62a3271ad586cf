"""Rewards from HTTP servers: those of ``burnish serve-reward``, and of LightRFT's and OpenRLHF's protocol.

What is sent to a service, samples, prompts and scores as JSON, is checked where it arrives, and never run.
"""

from __future__ import annotations

import base64
import io
import json
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, PlainSerializer, ValidationError

from burnish.options import Count, Seconds, Threads, Whole
from burnish.registry import options, register
from burnish.rewards.base import Reward, Score
from burnish.rewards.text.base import LanguageReward, Response
from burnish.types.media import HIGHEST_RATE, Media
from burnish.types.messages import read_calls, read_more
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.samples import Clip, Kind, Sound
from burnish.utils.http import Servers, check_url, read_token, servers
from burnish.utils.media import as_rgb
from burnish.utils.terminal import printable

if TYPE_CHECKING:
    import numpy as np

Url = Annotated[str, Field(pattern="^https?://")]


@options
class ServerOptions:
    """A reward that servers compute. Comes before the base of rewards among the bases of a class."""

    name: ClassVar[str]

    url: Url | Annotated[list[Url], Field(min_length=1)]
    """URL of the server, or of several that do the same work: requests go to the one with the fewest under way, and one
    that fails rests for a while."""
    token_variable: str | None = None
    """Environment variable with a token for the Authorization header; null sends none. The token itself is not an
    option, so that it is neither logged nor saved."""
    concurrency: Threads = 4
    """Concurrent requests."""
    deadline: Seconds = 120.0
    """Seconds for a batch of samples, all tries included; rewards that have not arrived by then are missing. Keep it
    below scoring.timeout."""
    retries: Whole = 4
    """Retries of a failed request, within the deadline."""

    @property
    def repeats(self) -> int:
        """How often whoever scores asks again: requests are repeated here, one by one."""
        return 0

    @property
    def urls(self) -> list[str]:
        """Of all servers."""
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def _servers(self) -> Servers:
        return servers(tuple(self.urls), read_token(self.token_variable, f"token_variable of reward {self.name}"))

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse addresses and tokens that can't be used."""
        for url in self.urls:
            check_url(url, f"url of reward {self.name}")
        self._servers()
        super().check(prompts)  # type: ignore[misc]

    def post(self, body: Any, until: float, path: str) -> Any:
        """What a server replies until then.

        Raises:
            OSError, ValueError: there is no reply, or it is not JSON.
        """
        return self._servers().post_json(
            body, deadline=max(until - time.monotonic(), 0.0), retries=self.retries, path=path,
            patience=self.deadline / min(len(self.urls), 2),  # so that another one may be asked
        )  # fmt: skip


@options
class RemoteOptions(ServerOptions):
    """Rewards that servers of ``burnish serve-reward`` compute."""

    batch_size: Count = 64
    """Samples per request."""

    @property
    def path(self) -> str:
        """What is asked of a server, after its URL."""
        return "/score"

    def body(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> dict[str, Any]:
        """What a request holds."""
        return ScoreRequest.of(samples, prompts).model_dump(mode="json", exclude_defaults=True)

    def read(self, reply: Any) -> list[Score]:
        """The scores of a reply.

        Raises:
            ValueError: it has none.
        """
        return [score.score() for score in ScoreReply.model_validate(reply).scores]

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Score]:
        """Several requests at once; what one that fails asked about is missing."""
        until = time.monotonic() + self.deadline

        def chunk(start: int) -> Sequence[Score]:
            own = slice(start, start + self.batch_size)
            try:
                scores = self.read(self.post(self.body(samples[own], prompts[own]), until, self.path))
                if len(scores) != len(samples[own]):
                    raise ValueError(f"it returned {len(scores)} scores for {len(samples[own])} samples")
            except (OSError, ValueError) as error:
                why = f"{', '.join(self.urls)}: {error}"
                scores = [Score(None, why, fault=why)] * len(samples[own])
            return scores

        with ThreadPoolExecutor(self.concurrency) as pool:
            starts = range(0, len(samples), self.batch_size)
            return [score for scores in pool.map(chunk, starts) for score in scores]


@register("flow reward", "remote")
class Remote(RemoteOptions, Reward):
    """What a server of burnish serve-reward makes of images, clips or sounds."""

    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")


@register("language reward", "remote")
class LanguageRemote(RemoteOptions, LanguageReward):
    """What a server makes of the responses."""

    protocol: Literal["lightrft", "openrlhf", "burnish"] = "lightrft"
    """lightrft posts {queries, prompts, responses, references, images}, openrlhf {query, prompts, labels}, and both
    read {rewards}: a number per response, or null. burnish is that of burnish serve-reward; give its address only."""

    @property
    def path(self) -> str:
        return super().path if self.protocol == "burnish" else ""

    def unfit(self, prompt: Prompt) -> str:
        unsent = self.protocol == "burnish" and (prompt.videos or prompt.audios)
        return "its videos and sounds can't be sent; remove them" if unsent else ""

    def body(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> dict[str, Any]:
        """LightRFT's ``references`` and ``images`` are sent if any prompt has some, with null for the others."""
        if self.protocol == "burnish":
            return super().body(samples, prompts)
        texts = {"prompts": [prompt.text for prompt in prompts]}
        queries = [prompt.text + response.text for response, prompt in zip(samples, prompts, strict=True)]
        answers = [prompt.answer for prompt in prompts]
        if self.protocol == "openrlhf":
            return texts | {"query": queries, "labels": answers}
        content = texts | {"queries": queries, "responses": [response.text for response in samples]}
        if any(answer is not None for answer in answers):
            content["references"] = answers
        if any(prompt.images for prompt in prompts):
            content["images"] = [
                [base64.b64encode(image.read()).decode() for image in prompt.images] or None for prompt in prompts
            ]
        return content

    def read(self, reply: Any) -> list[Score]:
        """Of a list of numbers, in which null is missing."""
        if self.protocol == "burnish":
            return super().read(reply)
        values = reply.get("rewards") if isinstance(reply, dict) else None
        if not isinstance(values, list):
            raise ValueError("its reply has no list 'rewards'")
        where = ", ".join(self.urls)
        return [
            Score(float(value))
            if type(value) in (int, float) and math.isfinite(value)
            else Score(None, f"{where} returned {value!r:.80}, which is not a finite number")
            for value in values
        ]


# what a service is sent and answers

Data = Annotated[bytes, PlainSerializer(lambda data: base64.b64encode(data).decode(), when_used="json")]
Number = Annotated[float, Field(allow_inf_nan=False)]
Rate = Annotated[int, Field(ge=1, le=HIGHEST_RATE)]


class _Sent(BaseModel, extra="forbid", strict=True, val_json_bytes="base64"):
    """A part of a request."""


class SoundData(_Sent):
    """Safetensors hold ``sound``, float32 [channels, N]."""

    rate: Rate
    safetensors: Data

    def sound(self) -> Sound:
        return Sound.of(_tensor(self.safetensors, "sound", "float32", 2), self.rate)


class ClipData(_Sent):
    """Safetensors hold ``frames``, uint8 [F, H, W, 3], and, where there is a rate, ``sound`` as well."""

    fps: Annotated[float, Field(gt=0, le=HIGHEST_RATE)]
    rate: Rate | None = None
    safetensors: Data

    def clip(self, most: int) -> Clip:
        frames = _tensor(self.safetensors, "frames", "uint8", 4)
        if frames.shape[3] != 3:
            raise ValueError("frames must be [F, H, W, 3]")
        _check_size(frames.shape[1], frames.shape[2], most)
        sound = None if self.rate is None else SoundData(rate=self.rate, safetensors=self.safetensors).sound()
        return Clip(frames=frames, fps=self.fps, sound=sound)


class SampleData(_Sent):
    """A response, image, clip or sound."""

    text: str | None = None
    finished: bool = True
    image: Data | None = None  # a file: PNG, JPEG or WebP
    clip: ClipData | None = None
    sound: SoundData | None = None

    @classmethod
    def of(cls, sample: Any) -> SampleData:
        import numpy as np

        if isinstance(sample, Response):
            return cls(text=sample.text, finished=sample.finished)
        if isinstance(sample, Sound):
            return cls(sound=SoundData(rate=sample.rate, safetensors=_packed(sound=sample.samples)))
        if not isinstance(sample, Clip):
            return cls(image=Media.array(np.asarray(sample)).read())
        tensors = {"frames": sample.frames} | ({"sound": sample.sound.samples} if sample.sound else {})
        rate = sample.sound.rate if sample.sound else None
        return cls(clip=ClipData(fps=sample.fps, rate=rate, safetensors=_packed(**tensors)))

    def sample(self, most: int) -> Any:
        if len(self.model_fields_set - {"finished"}) != 1:
            raise ValueError("it must have one of text, image, clip and sound")
        if self.image is not None:
            return _pixels(self.image, most)
        if self.clip is not None:
            return self.clip.clip(most)
        return Response(self.text or "", finished=self.finished) if self.sound is None else self.sound.sound()


class _TurnPart(_Sent):
    type: Literal["text", "image"]
    text: str = ""


class _Turn(BaseModel, extra="allow", strict=True):
    role: str
    content: list[_TurnPart]

    def message(self) -> Message:
        known = self.model_dump()
        parts = tuple(Part(part.type, part.text) for part in self.content)
        return Message(self.role, parts, read_calls(known.get("tool_calls")), read_more(known))


class PromptData(_Sent):
    """A prompt with its images; ``info`` are the user's own keys."""

    text: str
    negative: str = ""
    answer: str | None = None
    source: str = "default"
    label: str | None = None
    info: dict[str, Any] = Field(default_factory=dict)
    messages: list[_Turn] = Field(default_factory=list)
    images: list[Data] = Field(default_factory=list)

    @classmethod
    def of(cls, prompt: Prompt) -> PromptData:
        return cls(
            text=prompt.text,
            negative=prompt.negative,
            answer=prompt.answer,
            source=prompt.source,
            label=prompt.label,
            info=prompt.info,
            messages=[_Turn(**turn) for turn in prompt.chat()] if prompt.messages else [],
            images=[_image(media) for media in prompt.images],
        )

    def prompt(self, most: int) -> Prompt:
        for image in self.images:
            _pixels(image, most)  # it stays encoded, once it is known that it can be decoded
        return Prompt(
            text=self.text,
            negative=self.negative,
            answer=self.answer,
            source=self.source,
            label=self.label,
            extra=json.dumps(self.info, sort_keys=True) if self.info else "",
            messages=tuple(turn.message() for turn in self.messages),
            images=tuple(map(Media.encoded, self.images)),
        )


class ScoreRequest(_Sent):
    """What a service is asked."""

    samples: list[SampleData]
    prompts: list[PromptData]

    @classmethod
    def of(cls, samples: Sequence[Any], prompts: Sequence[Prompt]) -> ScoreRequest:
        return cls(
            samples=[SampleData.of(sample) for sample in samples],
            prompts=[PromptData.of(prompt) for prompt in prompts],
        )

    def read(self, most: int, room: int) -> tuple[list[Any], list[Prompt]]:
        """Samples and prompts, whose images and frames have at most so many pixels.

        Raises:
            ValueError: with what is wrong and where.
            BufferError: decoded images take more than ``room`` bytes.
        """
        if len(self.samples) != len(self.prompts):
            raise ValueError(f"there are {len(self.samples)} samples, but {len(self.prompts)} prompts")
        samples, prompts = list[Any](), list[Any]()
        for number, (sample, prompt) in enumerate(zip(self.samples, self.prompts, strict=True)):
            for where, read, made in (("samples", sample.sample, samples), ("prompts", prompt.prompt, prompts)):
                try:
                    made.append(read(most))
                except ValueError as error:
                    raise ValueError(f"{where}.{number}: {error}") from None
            room -= bytes_of(samples[-1:])
            if room < 0:
                raise BufferError("decoded images would take too much memory; send fewer at once")
        return samples, prompts


def bytes_of(samples: Sequence[Any]) -> int:
    """Of images that are decoded; all else takes the memory of the request."""
    return sum(getattr(sample, "nbytes", 0) for sample in samples)


class ScoreData(BaseModel, strict=True):
    """What a service answers about one sample."""

    value: Number | None
    values: dict[str, Number] = Field(default_factory=dict)
    note: str = ""
    fault: str = ""
    answer: str | None = None

    def score(self) -> Score:
        note, fault = shortened(self.note), shortened(self.fault)
        return Score(self.value, note, fault=fault, numbers=self.values, answer=self.answer)


class ScoreReply(BaseModel):
    """What a service answers."""

    scores: list[ScoreData]


def shortened(text: str) -> str:
    """The text of a note, whoever wrote it, as it may be sent and shown."""
    return printable(text)[:1000]


def problem(error: ValidationError) -> str:
    """The first thing that is wrong with what was sent, and where."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    return ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))


def _image(media: Media) -> bytes:
    """The file as it is, where services read its format; else as PNG."""
    import numpy as np

    data = media.read()
    if media.fit.min_pixels or media.fit.max_pixels or not data.startswith((b"\x89PNG", b"\xff\xd8\xff", b"RIFF")):
        return Media.array(np.asarray(media.image())).read()
    return data


def _pixels(data: bytes, most: int) -> np.ndarray:
    """Of an image, uint8 [H, W, 3]."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=["PNG", "JPEG", "WEBP"]) as opened:
            _check_size(opened.height, opened.width, most)
            return np.asarray(as_rgb(opened))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the image can't be read: {str(error)[:200]}") from None


def _packed(**tensors: np.ndarray) -> bytes:
    import numpy as np
    from safetensors.numpy import save

    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()})


def _tensor(data: bytes, name: str, dtype: str, dimensions: int) -> np.ndarray:
    """One tensor of safetensors."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensor = load(data).get(name)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the safetensors can't be read: {str(error)[:200]}") from None
    if tensor is None or tensor.dtype != dtype or tensor.ndim != dimensions or 0 in tensor.shape:
        raise ValueError(f"{name} must be a tensor of {dtype} with {dimensions} dimensions")
    return tensor


def _check_size(height: int, width: int, most: int) -> None:
    if height * width > most:
        raise ValueError(f"an image has {width}x{height} pixels, more than {most}")
