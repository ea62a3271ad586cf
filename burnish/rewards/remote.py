"""Rewards from servers: what is asked, by which protocol, and what becomes of the answers, for both tasks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from burnish.options import Count, Seconds, Threads, Whole
from burnish.registry import options
from burnish.rewards.base import Verdict
from burnish.utils.errors import UserError
from burnish.utils.http import check_url, read_token, servers

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

Url = Annotated[str, Field(pattern="^https?://")]
Ask = Callable[[Sequence[Any], Sequence["Prompt"]], dict[str, Any]]  # the body of a request
Read = Callable[[Any, int], Sequence[Verdict]]  # verdicts of a reply, for N samples


@options
class RemoteOptions:
    """Options of rewards that servers compute. Comes before the base of rewards among the bases of a class."""

    url: Url | list[Url]
    """URL of the server, or of several that do the same work: requests go to the one with the fewest under way, and one
    that fails rests for a while."""
    batch_size: Count = 64
    """Samples per request."""
    concurrency: Threads = 4
    """Concurrent requests."""
    deadline: Seconds = 120.0
    """Seconds for a batch of samples, all tries included; rewards that have not arrived by then are missing. Keep it
    below scoring.timeout."""
    patience: Seconds | None = None
    """Seconds for one try; null takes all that is left of the deadline."""
    retries: Whole = 4
    """Retries of a failed request, within the deadline."""
    images: bool = True
    """Send the pictures of the prompts, in base64."""
    token_variable: str | None = None
    """Environment variable with a token for the Authorization header; null sends none. The token itself is not an
    option, so that it is neither logged nor saved."""

    @property
    def repeats(self) -> int:
        """How often whoever scores asks again: requests are repeated here, one by one."""
        return 0

    @property
    def urls(self) -> list[str]:
        """Of all servers."""
        return [self.url] if isinstance(self.url, str) else list(self.url)

    def check_servers(self) -> None:
        """Refuse addresses and tokens that can't be used.

        Raises:
            UserError: naming the option.
        """
        if not self.urls:
            raise UserError("url of reward remote is empty; give the URL of a server")
        for url in self.urls:
            check_url(url, "url of reward remote")
        self._token()

    def _token(self) -> str | None:
        return read_token(self.token_variable, "token_variable of reward remote")

    def ask_servers(
        self, samples: Sequence[Any], prompts: Sequence[Prompt], ask: Ask, read: Read, path: str, health: str | None
    ) -> list[Verdict]:
        """The verdicts on samples, several requests at once; those of a request that fails are missing."""
        until = time.monotonic() + self.deadline
        balanced = servers(tuple(self.urls), self._token(), health)

        def chunk(start: int) -> Sequence[Verdict]:
            some = slice(start, start + self.batch_size)
            try:
                reply = balanced.post_json(
                    ask(samples[some], prompts[some]),
                    deadline=until - time.monotonic(),
                    retries=self.retries,
                    patience=math.inf if self.patience is None else self.patience,
                    path=path,
                )
                return read(reply, len(samples[some]))
            except (OSError, ValueError) as error:
                why = f"{', '.join(self.urls)}: {error}"
                return [Verdict(None, (), why, fault=why)] * len(samples[some])

        with ThreadPoolExecutor(self.concurrency) as pool:
            return [verdict for some in pool.map(chunk, range(0, len(samples), self.batch_size)) for verdict in some]


def by_burnish(url: str, *, media: bool) -> tuple[Ask, Read]:
    """The protocol of ``burnish serve-reward``: what a request holds, and what its reply means."""
    from burnish.rewards.wire import encode_prompt, encode_sample, verdicts_of

    def ask(samples: Sequence[Any], prompts: Sequence[Prompt]) -> dict[str, Any]:
        return {
            "samples": [encode_sample(sample) for sample in samples],
            "prompts": [encode_prompt(prompt, media=media) for prompt in prompts],
        }

    return ask, lambda reply, count: verdicts_of(reply, count, url)


def numbers_of(reply: Any, key: str, count: int, url: str) -> list[Verdict]:
    """Verdicts of a list of numbers, in which null is missing.

    Raises:
        ValueError: it does not have one per sample.
    """
    values = reply.get(key) if isinstance(reply, dict) else None
    if not isinstance(values, list):
        raise ValueError(f"its reply has no list {key!r}")
    if len(values) != count:
        raise ValueError(f"it returned {len(values)} numbers for {count} responses")
    return [_number(value, url) for value in values]


def _number(value: Any, url: str) -> Verdict:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return Verdict(None, (), f"{url} returned {value!r:.80}, which is not a finite number")
    return Verdict(float(value))
