"""Likelihood of the prompt's text under PP-OCR: a smooth score, with gradients for reward back-propagation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from burnish.options import Threads
from burnish.registry import register
from burnish.rewards.base import Reward, Verdict
from burnish.rewards.images.ocr import HEIGHT, model_file, recognise, recogniser, wanted
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from burnish.types.prompt import Prompt

SMALLEST = 1e-30  # lower bound of probabilities before the logarithm
STRIDE = 8  # pixels of the model's input to a column of its output
COLUMNS = 3  # columns to a character: about what printed text has
LOWEST = 8  # pixels of a line at least, that any text in it may be read


@register("flow reward", "ocr_ctc")
class OcrCtc(Reward):
    """Log-prob per character of reading exactly the prompt's text; the best value is 0.

    The text is expected in one line across the picture. A picture that is too high for that, whose line would have too
    few columns for the answer, is read in bands, and the one that reads best counts. Case and inner white space count,
    unlike in ``ocr``.
    """

    threads: Threads = 1
    """Threads of the recognition model in scoring; more processes (scoring.processes) use cores better."""

    def prepare(self) -> None:
        recogniser(self.threads)

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        import numpy as np

        answers = [self._codes(prompt) for prompt in prompts]
        verdicts = [Verdict(None, (), "")] * len(images)
        lines: list[np.ndarray] = []
        owners: list[int] = []
        for i, (image, answer) in enumerate(zip(images, answers, strict=True)):
            try:
                lines += cut(image, bands(image.shape[0], image.shape[1], len(answer)))
            except ValueError as error:
                verdicts[i] = Verdict(None, (), str(error))
            owners += [i] * (len(lines) - len(owners))
        for rows, columns in recognise(lines, self.threads):
            for row, probability in zip(rows, columns, strict=True):
                i = owners[row]
                value = log_likelihood(np.log(probability.clip(SMALLEST)), answers[i])
                before = verdicts[i].value
                verdicts[i] = Verdict(value if before is None else max(before, value))
        return verdicts

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        import torch

        from burnish.rewards.recognition import log_likelihood as log_likelihood_with_gradients

        answers = [self._codes(prompt) for prompt in prompts]
        height, width = pictures.shape[-2:]
        counts = [bands(height, width, len(answer)) for answer in answers]
        found = [pictures.new_zeros(())] * len(prompts)
        for count in dict.fromkeys(counts):
            rows = [i for i, own in enumerate(counts) if own == count]
            wanted, some = [answers[i] for i in rows], pictures[rows]
            if count > 1:
                with torch.no_grad():
                    each = [log_likelihood_with_gradients(x, wanted, _graph(), HEIGHT) for x in cut(some, count, -2)]
                best = torch.stack(each).argmax(0).tolist()
                some = torch.stack([cut(picture, count, -2)[at] for picture, at in zip(some, best, strict=True)])
            for i, value in zip(rows, log_likelihood_with_gradients(some, wanted, _graph(), HEIGHT), strict=True):
                found[i] = value
        return torch.stack(found)

    def check_size(self, prompts: Sequence[Prompt], height: int, width: int) -> None:
        for prompt in prompts:
            try:
                bands(height, width, len(self._codes(prompt)))
            except ValueError as error:
                raise UserError(
                    f"reward ocr_ctc can't score prompt {prompt.text!r}: {error}; draw wider pictures, or leave the "
                    "prompt out"
                ) from None

    def check(self, prompts: Sequence[Prompt]) -> None:
        for prompt in prompts:
            try:
                self._codes(prompt)
            except ValueError as error:
                raise UserError(f"reward ocr_ctc can't score prompt {prompt.text!r}: {error}") from None

    def _codes(self, prompt: Prompt) -> list[int]:
        """The model's codes of the answer's characters.

        Raises:
            ValueError: there is no answer, or the model lacks a character.
        """
        answer = (wanted(prompt) or "").strip()
        if not answer:
            raise ValueError(
                'it has no answer and no text in double quotes; give {"prompt": ..., "answer": ...} in a .jsonl file'
            )
        codes = _codes_by_character(self.threads)
        for character in answer:
            if character not in codes:
                raise ValueError(f"the recognition model lacks the character {character!r} of its answer")
        return [codes[character] for character in answer]


def bands(height: int, width: int, characters: int) -> int:
    """The fewest bands of a picture whose width gives enough columns to a line of N characters.

    Raises:
        ValueError: it would take bands that are too low to be read.
    """
    for count in range(1, max(height // LOWEST, 1) + 1):
        if round(width * HEIGHT / (height // count)) // STRIDE >= COLUMNS * characters:
            return count
    raise ValueError(
        f"its text has {characters} characters, more than a line of a picture of {width} x {height} pixels shows"
    )


def cut(picture: Any, count: int, axis: int = 0) -> list[Any]:
    """Overlapping bands of a picture, or of several, from top to bottom: 2 count - 1 of 1 / count of its height."""
    height = picture.shape[axis]
    band, last = height // count, 2 * count - 2
    starts = [round(i * (height - band) / last) for i in range(last + 1)] if last else [0]
    return [picture[start : start + band] if axis == 0 else picture[..., start : start + band, :] for start in starts]


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
def _codes_by_character(threads: int) -> dict[str, int]:
    _, characters = recogniser(threads)
    return {character: code for code, character in enumerate(characters) if character}


@cache
def _graph() -> Any:
    from burnish.rewards.recognition import Graph

    return Graph(model_file())
