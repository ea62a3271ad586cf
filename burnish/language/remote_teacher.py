"""A teacher behind an address: log-probs of given tokens, by OpenAI's completions protocol as vLLM extends it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from burnish.language.model.universal import LanguageModel
from burnish.options.language import TokenTeacher
from burnish.rl.surrogates import LEAST
from burnish.types.completion import Completion
from burnish.utils.errors import UserError
from burnish.utils.http import HttpError, Servers, read_token, request
from burnish.utils.json_text import parse_json

AT_ONCE = 16  # requests under way
RETRIES, PATIENCE = 3, 120.0  # of a request, and seconds that one may take
LARGEST = 256 << 20  # bytes of a reply
SENTENCE = "The quick brown fox jumps over 13 lazy dogs."  # whose tokens are compared
Answer = tuple[Tensor, Tensor]  # ids [T, K] and log-probs [T, K] of the tokens of a response


class ServedTeacher:
    """Asks a server about responses, several at once, and remembers what it was asked in this update."""

    def __init__(self, teacher: TokenTeacher, option: str, student: LanguageModel) -> None:
        assert teacher.url is not None, "a teacher with a path is loaded"
        self.url, self.option, self.student = teacher.url.rstrip("/"), option, student
        self._served_as, token = teacher.served_as, read_token(teacher.token_variable, f"{option}.token_variable")
        self._server = Servers([self.url], token=token, largest=LARGEST)
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="teacher")
        self._asked: dict[tuple[Any, ...], Future[Answer]] = {}

    @cached_property
    def served_as(self) -> str:
        """Name of the model on the server."""
        if self._served_as is not None:
            return self._served_as
        try:
            reply = request("GET", f"{self.url}/models", content=None, seconds=PATIENCE, token=self._server.token)
            listed = parse_json(reply).get("data") or []
        except (HttpError, ValueError) as error:
            raise self._silent(error) from error
        if not listed or not isinstance(listed[0].get("id"), str):
            raise UserError(f"{self.option}.url is {self.url}, which lists no model; give {self.option}.served_as")
        return str(listed[0]["id"])

    def check(self) -> None:
        """Refuse a server that does not answer, returns no log-probs of a prompt, or has another tokenizer.

        Raises:
            UserError: naming the option.
        """
        ids = [*self.student.response_ids(SENTENCE)]
        for number, entry in zip(ids[1:], self._entries(ids, 1)[1:], strict=True):
            theirs, ours = entry[str(number)].get("decoded_token"), self.student.decode([number])
            if isinstance(theirs, str) and ours and "�" not in ours + theirs and theirs != ours:
                raise UserError(
                    f"{self.option}.url is {self.url}, whose {self.served_as} reads token {number} as {theirs!r}, but "
                    f"model.path as {ours!r}: its tokenizer is another one. Serve a model with the student's tokenizer"
                )

    def forget(self) -> None:
        """Another update begins: what was asked before isn't asked again."""
        for future in self._asked.values():
            future.cancel()
        self._asked.clear()

    def read(self, seen: Completion, top_k: int) -> Answer:
        """What the server thinks of the tokens of responses, whose prompts are those that it reads: [R, K] both."""
        answers = [future.result() for future in self.ask(seen, top_k)]
        mask = [seen.mask[row, : int(seen.length[row])] for row in range(len(seen))]
        ids = torch.cat([one[keep] for (one, _), keep in zip(answers, mask, strict=True)])
        values = torch.cat([one[keep] for (_, one), keep in zip(answers, mask, strict=True)])
        # what the student can't write counts with all the rest
        return ids, values.masked_fill(torch.isin(ids, self.student.banned), LEAST)

    def chosen(self, seen: Completion) -> Tensor:
        """Log-prob of each token of the responses: [B, T]."""
        found = torch.zeros(seen.mask.shape)
        for row, future in enumerate(self.ask(seen, 0)):
            _, values = future.result()
            found[row, : len(values)] = values[:, 0]
        return found

    def ask(self, seen: Completion, top_k: int) -> list[Future[Answer]]:
        """Ask about responses in the background."""
        found = []
        for row, prompt in enumerate(seen.prompts.index.tolist()):
            before = seen.prompts.table.ids[prompt].tolist()
            response = seen.ids[row, : int(seen.length[row])].tolist()
            key = (top_k, tuple(before), tuple(response))
            if key not in self._asked:
                self._asked[key] = self._pool.submit(self._answer, before, response, top_k)
            found.append(self._asked[key])
        return found

    def _answer(self, before: Sequence[int], response: Sequence[int], top_k: int) -> Answer:
        """The ``top_k`` likeliest tokens at each of a response's; with 0 the response's own."""
        if not response:
            return torch.zeros(0, max(top_k, 1), dtype=torch.long), torch.zeros(0, max(top_k, 1))
        ids, values = [], []
        entries = self._entries([*before, *response], max(top_k, 1))[len(before) :]
        for number, entry in zip(response, entries, strict=True):
            own = {int(token): float(known["logprob"]) for token, known in entry.items()}
            kept = sorted(own, key=lambda token: -own[token])[:top_k] if top_k else [number]
            if len(kept) < top_k or max(own) >= self.student.vocabulary:
                raise UserError(
                    f"{self.option}.url is {self.url}, which answers with {len(own)} log-probs of a token, ids up to "
                    f"{max(own)}; {top_k} were asked for (vLLM: --max-logprobs), of {self.student.vocabulary} tokens"
                )
            ids.append(kept)
            values.append([max(own[token], LEAST) for token in kept])
        return torch.tensor(ids), torch.tensor(values)

    def _entries(self, ids: Sequence[int], count: int) -> list[dict[str, Any]]:
        """For each token of a text, log-probs of ``count`` likely ones and its own, by id; none for the first."""
        asked = {
            "model": self.served_as, "prompt": list(ids), "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": count,
        }  # fmt: skip
        try:
            answer = self._server.post_json(
                asked, path="/completions", retries=RETRIES, patience=PATIENCE, deadline=(RETRIES + 2) * PATIENCE
            )
        except HttpError as error:
            raise self._silent(error) from error
        choices = answer.get("choices") or [{}]
        found: Any = choices[0].get("prompt_logprobs") or answer.get("prompt_logprobs")
        if (
            not isinstance(found, list)
            or len(found) != len(ids)
            or any(
                not isinstance(entry, dict) or str(token) not in entry
                for token, entry in zip(ids[1:], found[1:], strict=True)
            )
        ):
            raise UserError(
                f"{self.option}.url is {self.url}, which returns no prompt_logprobs; serve the teacher with vLLM "
                "(vllm serve MODEL), or give its directory as path"
            )
        return [one or {} for one in found]

    def _silent(self, error: Exception) -> UserError:
        return UserError(f"{self.option}.url is {self.url}, which does not answer: {error}; look after the server")
