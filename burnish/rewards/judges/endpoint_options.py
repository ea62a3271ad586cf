"""Options of judges behind an address."""

from __future__ import annotations

import json
import math
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import Field, model_validator

from burnish.options import Count, Fraction, NonNegative, Positive, Seconds, Threads, Whole
from burnish.registry import options
from burnish.utils.errors import UserError
from burnish.utils.http import check_url, read_token, servers
from burnish.utils.paths import resolve

if TYPE_CHECKING:
    from burnish.rewards.judges.endpoint import EndpointOracle
    from burnish.rewards.judges.store import Store


@options
class Budget:
    """Limits of what is asked, over all runs and processes that share a store. What is asked after is missing."""

    requests: Count | None = None
    """Most requests; null sets no limit. Retries of one that failed count once."""
    tokens: Count | None = None
    """Most tokens, read and written, by the server's own count; null sets no limit."""
    cost: Positive | None = None
    """Most that tokens may cost, by input_price and output_price; null sets no limit."""
    input_price: NonNegative = 0.0
    """Price of a million tokens that the judge reads, pictures included."""
    output_price: NonNegative = 0.0
    """Price of a million tokens that the judge writes."""


@options
class EndpointOptions:
    """A judge behind one or several addresses."""

    name: ClassVar[str]

    url: str | list[str]
    """Address of a server with OpenAI's protocol, up to /v1; or several that serve the same model: the one with the
    fewest requests under way is asked, and one that fails is left alone until its /models answers."""
    model: Annotated[str, Field(min_length=1)]
    """Name of the model, as the server knows it."""
    token_variable: str | None = None
    """Environment variable with a token for the Authorization header; null sends none. The token itself is not an
    option, so that it is neither logged nor saved."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the request, as {chat_template_kwargs: {enable_thinking: false}}; null leaves one of ours out."""
    concurrency: Threads = 16
    """Requests under way at once."""
    deadline: Seconds = 120.0
    """Seconds for a batch of samples, all tries included; what has not arrived by then is missing. Keep it below
    scoring.timeout."""
    patience: Seconds = 60.0
    """Seconds for one try."""
    retries: Whole = 4
    """Tries of a failed request after the first, with pauses that double, within the deadline."""
    tolerance: Fraction = 0.05
    """Servers list the 20 likeliest tokens only, so that what is not among them is known within bounds. A value whose
    bounds lie further apart than this share of its range is missing."""
    cache: Whole = 4096
    """Replies that are kept in memory and in the store, by model, question and pictures, so that nothing is asked
    twice."""
    store: str | None = None
    """File that keeps replies and counts what was spent, for all processes of a machine and for later runs; give every
    model its own. null keeps replies in memory alone."""
    budget: Budget | None = None
    """Limits of what is asked; needs a store, which counts."""

    @model_validator(mode="after")
    def _addresses_are_some(self) -> Self:
        if not self._urls:
            raise ValueError("url is an empty list; give an address")
        for url in self._urls:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"url is {url!r:.80}; it must begin with http:// or https://")
        return self

    def _check_endpoint(self) -> None:
        for url in self._urls:
            check_url(url, f"url of reward {self.name}")
        self._token()
        if self.budget is not None:
            self._check_budget(self.budget)
        if self.store is not None:
            try:
                _store(self.store, self.cache).check()
            except UserError as error:
                raise UserError(f"store of reward {self.name} is {self.store}: {error}") from None

    def _check_budget(self, budget: Budget) -> None:
        if self.store is None:
            raise UserError(
                f"budget of reward {self.name} is given without store, the file that counts for all processes and for "
                "a run that goes on; give one"
            )
        if budget.requests is None and budget.tokens is None and budget.cost is None:
            raise UserError(f"budget of reward {self.name} limits nothing; give requests, tokens or cost")
        if (budget.cost is None) != (not budget.input_price and not budget.output_price):
            raise UserError(f"budget of reward {self.name}: cost is counted by prices; give both, or neither")

    @property
    def _urls(self) -> list[str]:
        given = [self.url] if isinstance(self.url, str) else self.url
        return [one.rstrip("/").removesuffix("/chat/completions") for one in given]

    @property
    def _tolerance(self) -> float:
        return self.tolerance

    @property
    def repeats(self) -> int:
        """How often whoever scores asks again: requests are repeated here, one by one."""
        return 0

    def _token(self) -> str | None:
        return read_token(self.token_variable, f"token_variable of reward {self.name}")

    def _endpoint(self, *, max_new_tokens: int) -> EndpointOracle:
        from burnish.rewards.judges.endpoint import EndpointOracle, Prices
        from burnish.rewards.judges.store import Spent

        limits = None
        if self.budget is not None:
            most = (self.budget.requests, self.budget.tokens, self.budget.cost)
            limits = Spent(*(math.inf if one is None else one for one in most))  # type: ignore[arg-type]
        prices = self.budget or Budget()
        return EndpointOracle(
            servers=servers(tuple(self._urls), self._token()),
            model=self.model,
            max_new_tokens=max_new_tokens,
            concurrency=self.concurrency,
            deadline=self.deadline,
            patience=self.patience,
            retries=self.retries,
            extra=self.extra,
            memory=_memory(tuple(self._urls), self.model, json.dumps(self.extra, sort_keys=True), self.cache),
            store=None if self.store is None else _store(self.store, self.cache),
            limits=limits,
            prices=Prices(prices.input_price, prices.output_price),
        )


@cache
def _memory(urls: tuple[str, ...], model: str, extra: str, entries: int) -> Any:
    from burnish.rewards.judges.store import Memory

    return Memory(entries)


@cache
def _store(file: str, entries: int) -> Store:
    from burnish.rewards.judges.store import Store

    return Store(resolve(file), max(entries, 1))
