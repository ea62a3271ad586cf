"""Text rendering, read by PP-OCR with the models in RapidOCR's wheel: as text, or as the likelihood of the prompt's,
which is smooth and has gradients for reward back-propagation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from burnish.registry import register
from burnish.rewards.base import Reward, Score
from burnish.types.prompt import kinds_of
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

HEIGHT = 48  # pixels of the recognition model's input
BATCH = 4  # lines per call; fixed, because rounding may depend on it, and more are not faster
THREADS = 1  # of a model; more processes (scoring.processes) use cores better
NO_ANSWER = 'it has no answer and no text in double quotes; give {"prompt": ..., "answer": ...} in a .jsonl file'


@register("flow reward", "ocr")
class Ocr(Reward):
    """Similarity of the text that OCR reads to the prompt's (Flow-GRPO's text rendering task)."""

    numbers = ("exact",)
    reads_prompts: ClassVar[bool] = True

    substring: bool = False
    """Full score if the text read contains the answer, as in Flow-GRPO's published task; false also penalizes text
    beside it, so that filling an image with digits doesn't pay."""
    detect: bool = False
    """Detect text anywhere in the image, with RapidOCR's full pipeline; false reads the image as one line, which
    is about thirty times faster."""

    def prepare(self) -> None:
        if self.detect:
            _detector()
        else:
            recogniser()

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        texts = (_find if self.detect else _read)(images)
        scores = []
        for text, prompt in zip(texts, prompts, strict=True):
            answer = wanted(prompt) or ""
            exact = {"exact": float(_plain(text) == _plain(answer))}
            scores.append(Score(similarity(text, answer, substring=self.substring), text, exact))
        return scores

    def check(self, prompts: Sequence[Prompt]) -> None:
        if any(prompt.answer is None for prompt in kinds_of(prompts)):  # else a million texts are not looked at
            super().check(prompts)

    def unfit(self, prompt: Prompt) -> str:
        return NO_ANSWER if wanted(prompt) is None else ""


def wanted(prompt: Prompt) -> str | None:
    """The text that an image should show: the answer, or the prompt's text in double quotes; None if there is none."""
    return prompt.answer if prompt.answer is not None else quoted(prompt.text)


def quoted(text: str) -> str | None:
    """What stands in double quotes first."""
    found = re.search(r'"([^"]+)"', text)
    return found and found[1]


def similarity(text: str, answer: str, *, substring: bool) -> float:
    """1 - min(edit distance, length) / length, ignoring white space and case; an empty answer expects no text."""
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
    """Read each image as one line of text."""
    _, characters, _ = recogniser()
    texts = [""] * len(images)
    for rows, columns in recognise(images):
        for i, codes in zip(rows, columns.argmax(-1).tolist(), strict=True):
            # CTC: repeated codes are one character, and code 0 is a blank
            kept = [code for code, before in zip(codes, [0, *codes], strict=False) if code not in (0, before)]
            texts[i] = "".join(characters[code] for code in kept).strip()
    return texts


def recognise(images: Sequence[np.ndarray]) -> Iterator[tuple[list[int], np.ndarray]]:
    """Outputs of the recognition model for images, each read as one line of text, in batches of equal size.

    Yields:
        Indices of images, and the probability of every character in every column: [len(indices), T, C].
    """
    import numpy as np
    from PIL import Image

    session, _, _ = recogniser()
    name = session.get_inputs()[0].name
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
            pixels = np.concatenate([pixels, np.zeros((BATCH - len(rows), *pixels.shape[1:]), np.float32)])
            columns = session.run(None, {name: np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))})[0]
            yield rows, columns[: len(rows)]


def model_file() -> Path:
    """The recognition model in RapidOCR's wheel."""
    package: Any = find_spec("rapidocr")  # only its files are needed: importing it takes a second
    return max((Path(package.origin).parent / "models").glob("*rec*.onnx"))


@cache
def recogniser() -> tuple[Any, list[str], dict[str, int]]:
    """The recognition model, its characters by code, of which 0 is CTC's blank, and the code of each character."""
    import onnxruntime

    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads = how.inter_op_num_threads = THREADS
    how.add_session_config_entry("session.intra_op.allow_spinning", "0")  # cores are shared with the trainer
    session = onnxruntime.InferenceSession(str(model_file()), how, providers=["CPUExecutionProvider"])
    listed = session.get_modelmeta().custom_metadata_map["character"].splitlines()
    characters = ["", *listed, " "]
    return session, characters, {character: code for code, character in enumerate(characters) if character}


def _find(images: Sequence[np.ndarray]) -> list[str]:
    """Read all text in each image, from top to bottom."""
    detector = _detector()
    return [" ".join(detector(image[..., ::-1]).txts or ()) for image in images]  # in BGR


@cache
def _detector() -> Any:
    from rapidocr import RapidOCR

    option = "EngineConfig.onnxruntime.{}_op_num_threads"
    limits = {option.format(kind): THREADS for kind in ("intra", "inter")}
    return RapidOCR(params={"Global.log_level": "error", **limits})  # it warns about every image without text


@register("flow reward", "ocr_ctc")
class OcrCtc(Reward):
    """Log-prob per character of reading exactly the prompt's text; the best value is 0.

    The text is expected in one line across the image. An image that is too high for that, whose line would have too
    few columns for the answer, is read in bands, and the one that reads best counts. Case and inner white space count,
    unlike in ``ocr``.
    """

    reads_prompts: ClassVar[bool] = True

    def prepare(self) -> None:
        recogniser()

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Score]:
        import numpy as np

        answers = [self._codes(prompt) for prompt in prompts]
        scores = [Score(None, "")] * len(images)
        lines: list[np.ndarray] = []
        owners: list[int] = []
        for i, (image, answer) in enumerate(zip(images, answers, strict=True)):
            try:
                lines += cut(image, bands(image.shape[0], image.shape[1], len(answer)))
            except ValueError as error:
                scores[i] = Score(None, str(error))
            owners += [i] * (len(lines) - len(owners))
        for rows, columns in recognise(lines):
            for row, probability in zip(rows, columns, strict=True):
                i = owners[row]
                value = log_likelihood(np.log(probability.clip(1e-30)), answers[i])
                before = scores[i].value
                scores[i] = Score(value if before is None else max(before, value))
        return scores

    def differentiable(self, images: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        from burnish.rewards.networks.recognition import log_likelihood as log_likelihood_with_gradients

        answers = [self._codes(prompt) for prompt in prompts]
        height, width = images.shape[-2:]
        counts = [bands(height, width, len(answer)) for answer in answers]
        found = [images.new_zeros(())] * len(prompts)
        for count in dict.fromkeys(counts):
            rows = [i for i, own in enumerate(counts) if own == count]
            each = [
                log_likelihood_with_gradients(band, [answers[i] for i in rows], _graph(), HEIGHT)
                for band in cut(images[rows], count, -2)
            ]
            for i, value in zip(rows, torch.stack(each).max(0).values, strict=True):
                found[i] = value
        return torch.stack(found)

    def check_size(self, prompts: Sequence[Prompt], height: int, width: int) -> None:
        for prompt in prompts:
            try:
                bands(height, width, len(_answer(prompt)))
            except ValueError as error:
                raise UserError(
                    f"reward ocr_ctc can't score prompt {prompt.text!r}: {error}; draw wider images, or leave the "
                    "prompt out"
                ) from None

    def unfit(self, prompt: Prompt) -> str:
        answer, (_, _, codes) = _answer(prompt), recogniser()
        if not answer:
            return NO_ANSWER
        lacking = next((character for character in answer if character not in codes), "")
        return lacking and f"the recognition model lacks the character {lacking!r} of its answer"

    def _codes(self, prompt: Prompt) -> list[int]:
        """The model's codes of the answer's characters."""
        _, _, codes = recogniser()
        return [codes[character] for character in _answer(prompt)]


def _answer(prompt: Prompt) -> str:
    return (wanted(prompt) or "").strip()


def bands(height: int, width: int, characters: int) -> int:
    """The fewest bands of an image whose width gives enough columns to a line of N characters.

    The model gives a column for 8 pixels of its input, and printed text has about 3 columns to a character.

    Raises:
        ValueError: it would take bands of less than 8 pixels, which are too low to be read.
    """
    for count in range(1, max(height // 8, 1) + 1):
        if round(width * HEIGHT / (height // count)) // 8 >= 3 * characters:
            return count
    raise ValueError(
        f"its text has {characters} characters, more than a line of an image of {width} x {height} pixels shows"
    )


def cut(image: Any, count: int, axis: int = 0) -> list[Any]:
    """Overlapping bands of an image, or of several, from top to bottom: 2 count - 1 of 1 / count of its height."""
    height = image.shape[axis]
    band, last = height // count, 2 * count - 2
    starts = [round(i * (height - band) / last) for i in range(last + 1)] if last else [0]
    return [image[start : start + band] if axis == 0 else image[..., start : start + band, :] for start in starts]


def log_likelihood(logprob: np.ndarray, answer: Sequence[int]) -> float:
    """CTC's log-prob of an answer per character (Graves et al. 2006, eq. 8).

    Args:
        logprob: [T, C] of each character in each column; character 0 is the blank.
        answer: codes of the characters, at least one.

    Returns:
        -inf if the answer, with blanks between equal characters, is longer than T.
    """
    import numpy as np

    path = [0, *(code for character in answer for code in (character, 0))]
    # a blank between different characters may be skipped
    skips = np.array([i >= 2 and code != 0 and code != path[i - 2] for i, code in enumerate(path)])
    reached = np.full(len(path), -np.inf)
    reached[:2] = logprob[0, path[:2]]
    for column in logprob[1:]:
        one = np.concatenate([[-np.inf], reached[:-1]])
        two = np.where(skips, np.concatenate([[-np.inf, -np.inf], reached[:-2]]), -np.inf)
        reached = np.logaddexp(np.logaddexp(reached, one), two) + column[path]
    return float(np.logaddexp(reached[-1], reached[-2]) / len(answer))


@cache
def _graph() -> Any:
    from burnish.rewards.networks.recognition import Graph

    return Graph(model_file())
