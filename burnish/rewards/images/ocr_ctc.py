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


@register("flow reward", "ocr_ctc")
class OcrCtc(Reward):
    """Log-prob per character of reading exactly the prompt's text; the best value is 0.

    The picture is read as one line of text. Case and inner white space count, unlike in ``ocr``.
    """

    threads: Threads = 1
    """Threads of the recognition model in scoring; more processes (scoring.processes) use cores better."""

    def prepare(self) -> None:
        recogniser(self.threads)

    def score(self, images: Sequence[np.ndarray], prompts: Sequence[Prompt]) -> list[Verdict]:
        import numpy as np

        verdicts = [Verdict(None, (), "not scored")] * len(images)
        for rows, columns in recognise(images, self.threads):
            for i, probability in zip(rows, columns, strict=True):
                value = log_likelihood(np.log(probability.clip(SMALLEST)), self._codes(prompts[i]))
                verdicts[i] = Verdict(value)
        return verdicts

    def differentiable(self, pictures: Tensor, prompts: Sequence[Prompt]) -> Tensor:
        from burnish.rewards.recognition import log_likelihood as log_likelihood_with_gradients

        answers = [self._codes(prompt) for prompt in prompts]
        return log_likelihood_with_gradients(pictures, answers, _graph(), HEIGHT)

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
