"""Does the picture show the text that was asked for? Read by PP-OCR's recognition model, as shipped in RapidOCR."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.errors import UserError
from burnish.registry import options, register
from burnish.rewards.base import Reward, Verdict

if TYPE_CHECKING:
    import numpy as np

    from burnish.prompt import Prompt

HEIGHT = 48  # pixels that the recognition model reads
BATCH = 24


@register("reward", "ocr")
@options
class Ocr(Reward):
    """One minus the edit distance between what is read and what was asked for (Flow-GRPO's text rendering task)."""

    extras = ("exact",)

    substring: bool = False
    """Give the full score as soon as the answer is contained in what is read, as Flow-GRPO's published task does;
    false also punishes what is written beside it."""
    detect: bool = False
    """Look for text anywhere in the picture, by RapidOCR's whole pipeline; false reads the picture as one line, which
    is a hundred times faster."""

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        texts = [_find(image) for image in images] if self.detect else _read(images)
        verdicts = []
        for text, prompt in zip(texts, prompts, strict=True):
            answer = wanted(prompt)
            if answer is None:
                verdicts.append(Verdict(None, (), f"prompt {prompt.text!r} says no text to write"))
                continue
            exact = float(_plain(text) == _plain(answer))
            verdicts.append(Verdict(similarity(text, answer, substring=self.substring), (exact,), text))
        return verdicts

    def check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            if wanted(prompt) is None:
                raise UserError(
                    f"reward ocr can't judge prompt {prompt.text!r}: it has no answer and no text in double quotes; "
                    'give {"prompt": ..., "answer": ...} in a .jsonl file'
                )


def wanted(prompt: Prompt) -> str | None:
    """The text that a picture should show: the answer, or what stands in double quotes in the prompt."""
    if prompt.answer is not None:
        return prompt.answer
    quoted = re.search(r'"([^"]+)"', prompt.text)
    return quoted.group(1) if quoted else None


def similarity(text: str, answer: str, *, substring: bool) -> float:
    """1 - min(edit distance, length) / length, without white space and case; an empty answer wants an empty text."""
    from rapidfuzz.distance import Levenshtein

    text, answer = _plain(text), _plain(answer)
    if not answer:
        return float(not text)
    if substring and answer in text:
        return 1.0
    return 1 - min(Levenshtein.distance(text, answer), len(answer)) / len(answer)


def _plain(text: str) -> str:
    return "".join(text.split()).lower()


def _read(images: Sequence[np.ndarray]) -> list[str]:
    """Read each picture as one line of text. Pictures share a batch only with others of their size."""
    import numpy as np
    from PIL import Image

    session, characters = _recogniser()
    texts = [""] * len(images)
    sizes: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for i, image in enumerate(images):
        sizes[image.shape[:2]].append(i)
    for (height, width), members in sizes.items():
        scaled = (max(round(width * HEIGHT / height), 1), HEIGHT)
        for start in range(0, len(members), BATCH):
            rows = members[start : start + BATCH]
            lines = [np.asarray(Image.fromarray(images[i]).resize(scaled, Image.Resampling.BILINEAR)) for i in rows]
            # the model was trained on BGR in [-1, 1]
            pixels = np.stack(lines)[..., ::-1].astype(np.float32) / 127.5 - 1
            best = session.run(None, {"x": np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))})[0].argmax(-1)
            for i, codes in zip(rows, best, strict=True):
                texts[i] = _collapse(codes.tolist(), characters)
    return texts


def _collapse(codes: Sequence[int], characters: Sequence[str]) -> str:
    """CTC: repeated codes are one character, and code 0 is none."""
    kept = [c for c, before in zip(codes, [0, *codes], strict=False) if c not in (0, before)]
    return "".join(characters[c] for c in kept).strip()


@lru_cache(maxsize=1)
def _recogniser() -> tuple[Any, list[str]]:
    import onnxruntime
    import rapidocr

    models = sorted((Path(rapidocr.__file__).parent / "models").glob("*rec*.onnx"))
    if not models:
        raise RuntimeError("this version of rapidocr ships no recognition model; install rapidocr>=3.4,<4")
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = how.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(models[-1]), how, providers=["CPUExecutionProvider"])
    listed = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    return session, ["", *listed, " "]


def _find(image: np.ndarray) -> str:
    result = _detector()(image[..., ::-1])
    return " ".join(result.txts or ())


@lru_cache(maxsize=1)
def _detector() -> Any:
    from rapidocr import RapidOCR

    return RapidOCR()
