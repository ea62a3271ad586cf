"""Rewards from HTTP servers: those of ``burnish serve-reward``, and of LightRFT's and OpenRLHF's protocol."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.options import Count, Seconds, Threads, Whole
from burnish.registry import ReadIf, options, register
from burnish.rewards.base import Reward, Score
from burnish.rewards.text.base import LanguageReward
from burnish.types.prompt import Prompt
from burnish.types.samples import Kind
from burnish.utils.http import Servers, check_url, read_token, servers

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
        from burnish.rewards.protocol import Request

        return Request.of(samples, prompts).model_dump(mode="json", exclude_defaults=True)

    def read(self, reply: Any) -> list[Score]:
        """The scores of a reply.

        Raises:
            ValueError: it has none.
        """
        from burnish.rewards.protocol import Reply

        return [score.score() for score in Reply.model_validate(reply).scores]

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
    score_key: Annotated[str, ReadIf("protocol", "lightrft", "openrlhf")] = "rewards"
    """lightrft, openrlhf: key of the list of numbers in the reply."""

    @property
    def path(self) -> str:
        return super().path if self.protocol == "burnish" else ""

    def unfit(self, prompt: Prompt) -> str:
        unsent = self.protocol == "burnish" and (prompt.videos or prompt.audios)
        return "its videos and sounds can't be sent; leave them out" if unsent else ""

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
        values = reply.get(self.score_key) if isinstance(reply, dict) else None
        if not isinstance(values, list):
            raise ValueError(f"its reply has no list {self.score_key!r}")
        where = ", ".join(self.urls)
        return [
            Score(float(value))
            if type(value) in (int, float) and math.isfinite(value)
            else Score(None, f"{where} returned {value!r:.80}, which is not a finite number")
            for value in values
        ]
