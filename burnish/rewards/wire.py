"""Samples, prompts and verdicts as JSON, for reward services. What comes from a network is checked, and never run."""

from __future__ import annotations

import base64
import binascii
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from burnish.rewards.base import Verdict
from burnish.rewards.text.base import Response
from burnish.types.clips import Clip, Sound
from burnish.types.media import HIGHEST_RATE, Media
from burnish.types.message_keys import read_more
from burnish.types.prompt import Message, Part, Prompt
from burnish.types.tool_calls import read_calls
from burnish.utils.pictures import as_rgb

FORMATS = ("png", "jpeg", "webp")  # of pictures; safetensors beside them
NOTE = 1000  # characters of a note that are sent


@dataclass(frozen=True)
class Limits:
    """Of what a request may hold; see ``burnish.options.service``."""

    samples: int
    pixels: int
    reserve: Callable[[int], None]  # is called with bytes before they are taken; it may refuse


def encode_sample(sample: Any) -> dict[str, Any]:
    """A response, picture, clip or sound."""
    if isinstance(sample, Response):
        return {"text": sample.text, "finished": sample.finished}
    if isinstance(sample, Clip):
        tensors = {"frames": np.ascontiguousarray(sample.frames)}
        about: dict[str, Any] = {"fps": sample.fps}
        if sample.sound is not None:
            tensors["sound"], about["rate"] = np.ascontiguousarray(sample.sound.samples), sample.sound.rate
        return {"clip": about | {"safetensors": _packed(tensors)}}
    if isinstance(sample, Sound):
        tensors = {"sound": np.ascontiguousarray(sample.samples)}
        return {"sound": {"rate": sample.rate, "safetensors": _packed(tensors)}}
    return {"image": _picture(sample)}


def encode_prompt(prompt: Prompt, *, media: bool) -> dict[str, Any]:
    """A prompt with its pictures, if they are wanted."""
    found: dict[str, Any] = {"text": prompt.text, "source": prompt.source}
    more = {"negative": prompt.negative, "answer": prompt.answer, "label": prompt.label, "info": prompt.info}
    found |= {name: value for name, value in more.items() if value}
    if prompt.messages:
        found["messages"] = prompt.chat()
    if media and prompt.images:
        found["images"] = [_media(image) for image in prompt.images]
    return found


def decode_request(content: Any, limits: Limits) -> tuple[list[Any], list[Prompt]]:
    """Samples and prompts of a request.

    Raises:
        ValueError: with what is wrong and where.
    """
    if not isinstance(content, dict):
        raise ValueError("it must be an object with samples and prompts")
    if odd := sorted(content.keys() - {"samples", "prompts"}):
        raise ValueError(f"it has {odd[0]!r:.60}; known are samples and prompts")
    found = []
    for name, read in (("samples", decode_sample), ("prompts", decode_prompt)):
        values = content.get(name)
        if not isinstance(values, list):
            raise ValueError(f"{name} must be a list")
        if len(values) > limits.samples:
            raise ValueError(f"{name} has {len(values)} entries, more than {limits.samples}")
        found.append([_at(f"{name}[{i}]", read, value, limits) for i, value in enumerate(values)])
    samples, prompts = found
    if len(samples) != len(prompts):
        raise ValueError(f"there are {len(samples)} samples, but {len(prompts)} prompts")
    return samples, prompts


def _at(place: str, read: Callable[[Any, Limits], Any], value: Any, limits: Limits) -> Any:
    try:
        return read(value, limits)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from None


def decode_sample(value: Any, limits: Limits) -> Any:
    """One sample."""
    if not isinstance(value, dict) or len(value.keys() & {"text", "image", "clip", "sound"}) != 1:
        raise ValueError("it must have one of text, image, clip and sound")
    if "text" in value:
        _known(value, "text", "finished")
        return Response(_text(value, "text"), finished=_flag(value.get("finished", True), "finished"))
    (name,) = _known(value, "image", "clip", "sound")
    about = value[name]
    if not isinstance(about, dict):
        raise ValueError(f"{name} must be an object")
    if name == "image":
        return decode_picture(about, limits)
    tensors = _tensors(about.get("safetensors"), limits)
    if name == "sound":
        return Sound.of(_wave(tensors), _whole_rate(about.get("rate")))
    frames = tensors.get("frames")
    if frames is None or frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or 0 in frames.shape:
        raise ValueError("frames must be a tensor of uint8 [F, H, W, 3]")
    _check_pixels(frames.shape[2], frames.shape[1], limits)
    sound = Sound.of(_wave(tensors), _whole_rate(about.get("rate"))) if "sound" in tensors else None
    return Clip(frames=frames, fps=_rate(about.get("fps"), "fps"), sound=sound)


def decode_prompt(value: Any, limits: Limits) -> Prompt:
    """One prompt."""
    if not isinstance(value, dict):
        raise ValueError("it must be an object with text")
    _known(value, "text", "negative", "answer", "source", "label", "info", "messages", "images")
    info = value.get("info") or {}
    if not isinstance(info, dict):
        raise ValueError("info must be an object")
    images = value.get("images") or []
    if not isinstance(images, list):
        raise ValueError("images must be a list")
    messages = value.get("messages") or []
    if not isinstance(messages, list):
        raise ValueError("messages must be a list")
    return Prompt(
        text=_text(value, "text"),
        negative=_text(value, "negative", ""),
        answer=_text(value, "answer", None),
        source=_text(value, "source", "default"),
        label=_text(value, "label", None),
        extra=json.dumps(info, sort_keys=True) if info else "",
        messages=tuple(_message(one) for one in messages),
        images=tuple(_given(one, limits) for one in images),
    )


def encode_verdict(verdict: Verdict) -> dict[str, Any]:
    """What a service answers about one sample."""
    found: dict[str, Any] = {
        "value": verdict.value, "values": dict(verdict.named), "note": verdict.note[:NOTE],
        "fault": verdict.fault.partition("\n")[0][:NOTE],
    }  # fmt: skip
    return found if verdict.answer is None else found | {"answer": verdict.answer[:NOTE]}


def decode_verdict(value: Any, where: str) -> Verdict:
    """A verdict of a service; missing where it is none."""
    if not isinstance(value, dict) or not _is_number(value.get("value")):
        about = value if isinstance(value, dict) else {}
        note, fault = (str(about.get(name) or "")[:NOTE] for name in ("note", "fault"))
        said = note or f"{where} returned {value!r:.80}, which is not a finite number"
        return Verdict(None, (), _plain(said), fault=_plain(fault))
    named = value["values"] if isinstance(value.get("values"), dict) else {}
    numbers = {str(name)[:100]: float(one) for name, one in named.items() if _is_number(one)}
    answer = value["answer"][:NOTE] if isinstance(value.get("answer"), str) else None
    note = _plain(str(value.get("note") or "")[:NOTE])
    return Verdict(float(value["value"]), (), note, named=numbers, answer=answer)


def decode_picture(about: Mapping[str, Any], limits: Limits) -> np.ndarray:
    """A picture, uint8 [H, W, 3]."""
    if "safetensors" in about:
        _known(about, "safetensors")
        found = _tensors(about["safetensors"], limits).get("image")
        if found is None or found.dtype != np.uint8 or found.ndim != 3 or found.shape[2] != 3 or 0 in found.shape:
            raise ValueError("image must be a tensor of uint8 [H, W, 3]")
        _check_pixels(found.shape[1], found.shape[0], limits)
        return found
    from PIL import Image

    data = _encoded(about)
    try:
        with Image.open(io.BytesIO(data), formats=[name.upper() for name in FORMATS]) as opened:
            _check_pixels(opened.width, opened.height, limits)
            limits.reserve(3 * opened.width * opened.height)
            return np.asarray(as_rgb(opened))
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"the picture can't be read: {str(error)[:200]}") from None


def _given(value: Any, limits: Limits) -> Media:
    """A picture of a prompt, which stays encoded, once it is known that it can be decoded."""
    if not isinstance(value, dict):
        raise ValueError("a picture must be an object such as {png: BASE64}")
    decode_picture(value, limits)
    if "safetensors" in value:
        raise ValueError("pictures of prompts are png, jpeg or webp")
    return Media.encoded(_encoded(value))


def _picture(pixels: np.ndarray) -> dict[str, str]:
    return {"png": base64.b64encode(Media.array(np.asarray(pixels)).read()).decode()}


def _media(image: Media) -> dict[str, str]:
    """As it is, where the format is one that services read; else as PNG."""
    data = image.read()
    heads = {"png": b"\x89PNG", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF"}
    kind = next((name for name, head in heads.items() if data.startswith(head)), None)
    if kind is None or image.fit.min_pixels or image.fit.max_pixels:
        return _picture(np.asarray(image.image()))
    return {kind: base64.b64encode(data).decode()}


def _packed(tensors: Mapping[str, np.ndarray]) -> str:
    from safetensors.numpy import save

    return base64.b64encode(save(dict(tensors))).decode()


def _tensors(text: Any, limits: Limits) -> dict[str, np.ndarray]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    data = _decoded(text, "safetensors")
    limits.reserve(len(data))
    try:
        return dict(load(data))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the safetensors can't be read: {str(error)[:200]}") from None


def _wave(tensors: Mapping[str, np.ndarray]) -> np.ndarray:
    found = tensors.get("sound")
    if found is None or found.dtype != np.float32 or found.ndim != 2 or 0 in found.shape:
        raise ValueError("sound must be a tensor of float32 [channels, N]")
    return found


def _encoded(about: Mapping[str, Any]) -> bytes:
    (name,) = _known(about, *FORMATS) if len(about) == 1 else ("",)
    if not name:
        raise ValueError(f"a picture has one of {', '.join(FORMATS)} and safetensors")
    return _decoded(about[name], name)


def _decoded(text: Any, name: str) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a text in base64")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"{name} is not base64") from None


def _message(value: Any) -> Message:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, list) or not isinstance(value.get("role"), str):
        raise ValueError("messages must have a role and a list as content")
    return Message(value["role"], tuple(map(_part, content)), read_calls(value.get("tool_calls")), read_more(value))


def _part(value: Any) -> Part:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind not in ("text", "image"):
        raise ValueError("the content of messages must be of type text or image")
    return Part(kind, _text(value, "text", ""))


def _check_pixels(width: int, height: int, limits: Limits) -> None:
    if width * height > limits.pixels:
        raise ValueError(f"a picture has {width}x{height} pixels, more than {limits.pixels}")


def _known(value: Mapping[str, Any], *names: str) -> list[str]:
    if odd := [name for name in value if name not in names]:
        raise ValueError(f"{odd[0]!r:.60} is not known here; known are {', '.join(names)}")
    return [name for name in names if name in value]


def _text(value: Mapping[str, Any], name: str, default: Any = ...) -> Any:
    found = value.get(name, default)
    if found is ... or (found is not default and not isinstance(found, str)):
        raise ValueError(f"{name} must be a text")
    if isinstance(found, str) and any("\ud800" <= letter <= "\udfff" for letter in found):
        raise ValueError(f"{name} holds half of a surrogate pair, which is not a character")
    return found


def _flag(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def _rate(value: Any, name: str) -> float:
    if not _is_number(value) or not 0 < value <= HIGHEST_RATE:
        raise ValueError(f"{name} must be a number > 0 and <= {HIGHEST_RATE:g}")
    return float(value)


def _whole_rate(value: Any) -> int:
    rate = round(_rate(value, "rate"))
    if rate < 1:
        raise ValueError(f"rate is {value}; a sound has 1 sample per second or more")
    return rate


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in text)


def verdicts_of(reply: Any, count: int, where: str) -> Sequence[Verdict]:
    """The verdicts of a service's reply.

    Raises:
        ValueError: it does not have one per sample.
    """
    found = reply.get("scores") if isinstance(reply, dict) else None
    if not isinstance(found, list):
        raise ValueError("its reply has no list 'scores'")
    if len(found) != count:
        raise ValueError(f"it returned {len(found)} scores for {count} samples")
    return [decode_verdict(value, where) for value in found]
