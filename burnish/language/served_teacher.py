"""A teacher on a server: what it thinks of tokens, by OpenAI's protocol with prompt_logprobs, as vLLM has it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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

RETRIES, PATIENCE = 3, 120.0  # of a request, and seconds that one may take
Answer = tuple[Tensor, Tensor]  # ids [T, K] and log-probs [T, K] of the tokens of a response


class ServedTeacher:
    """Asks a server about responses, several at once, and remembers what it was asked in this update."""

    def __init__(self, teacher: TokenTeacher, option: str, student: LanguageModel) -> None:
        """Refuse a server that does not answer, returns no log-probs of a prompt, or has another tokenizer.

        Raises:
            UserError: naming the option.
        """
        assert teacher.url is not None, "a teacher with a path is loaded"
        self.url, self.option, self.student = teacher.url.rstrip("/"), option, student
        token = read_token(teacher.token_variable, f"{option}.token_variable")
        self._server = Servers([self.url], token=token, largest=256 << 20)  # bytes of a reply
        self._pool = ThreadPoolExecutor(16, thread_name_prefix="teacher")  # requests under way
        self.asked: dict[tuple[Any, ...], Future[Answer]] = {}  # in this update
        self.served_as = teacher.served_as or self._first_listed()
        ids = student.response_ids("The quick brown fox jumps over 13 lazy dogs.")
        for number, entry in zip(ids[1:], self._entries(ids, 1)[1:], strict=True):
            theirs, ours = entry[str(number)].get("decoded_token"), student.decode([number])
            if isinstance(theirs, str) and ours and "�" not in ours + theirs and theirs != ours:
                raise UserError(
                    f"{option}.url is {self.url}, whose {self.served_as} reads token {number} as {theirs!r}, but "
                    f"model.path as {ours!r}: its tokenizer is another one. Serve a model with the student's tokenizer"
                )

    def _first_listed(self) -> str:
        """Name of the first model on the server."""
        try:
            reply = request("GET", f"{self.url}/models", content=None, seconds=PATIENCE, token=self._server.token)
            listed = parse_json(reply).get("data") or []
        except (HttpError, ValueError) as error:
            raise self._silent(error) from error
        if not listed or not isinstance(listed[0].get("id"), str):
            raise UserError(f"{self.option}.url is {self.url}, which lists no model; give {self.option}.served_as")
        return str(listed[0]["id"])

    def read(self, seen: Completion, top_k: int) -> Answer:
        """What the server thinks of the tokens of responses, whose prompts are those that it reads: [R, K] both."""
        answers = [future.result() for future in self.ask(seen, top_k)]
        ids, values = (torch.cat(side) for side in zip(*answers, strict=True))
        # what the student can't write counts with all the rest
        return ids, values.masked_fill(torch.isin(ids, self.student.banned), LEAST)

    def ask(self, seen: Completion, top_k: int) -> list[Future[Answer]]:
        """Ask about responses in the background."""
        keys = []
        for prompt, ids, length in zip(seen.prompts.index.tolist(), seen.ids, seen.length.tolist(), strict=True):
            key = (tuple(seen.prompts.table.ids[prompt].tolist()), tuple(ids[:length].tolist()), top_k)
            keys.append(key)
            if key not in self.asked:
                self.asked[key] = self._pool.submit(self._answer, *key)
        return [self.asked[key] for key in keys]

    def _answer(self, before: Sequence[int], response: Sequence[int], top_k: int) -> Answer:
        """The ``top_k`` likeliest tokens at each of a response's; with 0 the response's own."""
        ids, values, width = [], [], max(top_k, 1)
        entries = self._entries([*before, *response], width)[len(before) :] if response else []
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
        return torch.tensor(ids, dtype=torch.long).view(len(ids), width), torch.tensor(values).view(len(ids), width)

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
        found: Any = (answer.get("choices") or [{}])[0].get("prompt_logprobs") or answer.get("prompt_logprobs")
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
