"""A language model's run, shortened: its own sampling, annotation and updates on responses of the greatest length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from burnish.evaluation.prompts import data_options
from burnish.forecast.brief import Once, alike
from burnish.forecast.counter import LiveBytes, Peak
from burnish.forecast.decoding import ORDINARY, endless
from burnish.forecast.fakes import Pretending, is_fake
from burnish.forecast.pretended import made_up_prompts
from burnish.forecast.prompts import Shape, longest_prompt
from burnish.forecast.recomputed import recompute_alike
from burnish.forecast.suites import first_batch, first_unit, suite_runners
from burnish.language.assembly import LanguageAssembly
from burnish.language.engine import LanguageEngine, ResponseEngine, ResponseJob
from burnish.language.roles import LanguageRoles
from burnish.rewards.text.base import Response
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt

SAID = "a response"


class LanguageHalf:
    """What is a language model's own in a forecast."""

    shape: Shape | None = None  # of the prompt that stands for all others

    def __init__(
        self, assembly: LanguageAssembly, counter: LiveBytes, pretending: Pretending | None, *, samples: bool = True
    ) -> None:
        """Take over an assembly of which nothing was used yet.

        Args:
            assembly: of the run.
            counter: which is active.
            pretending: None where tensors are real and are counted all the same.
            samples: whether this process samples what is learned from.
        """
        self.assembly, self.counter, self.pretending, self.samples = assembly, counter, pretending, samples
        if assembly.has_separate_engine:  # which would be started
            assembly.engine = GivenResponses(self)

    def data(self, count: int) -> dict[str, Any]:
        """Made-up prompts; all are encoded as the longest one."""
        return {"train_prompts": made_up_prompts(count)}

    def parts(self) -> Iterator[nn.Module]:
        """Everything that has weights."""
        roles: LanguageRoles = self.assembly.roles
        yield from roles._networks.values()
        yield from (head for head in (roles.value_head, roles.reward_head) if head is not None)

    def shorten(self) -> None:
        """Compute once what is computed for every micro-batch alike, and decode one batch of responses."""
        roles, config = self.assembly.roles, self.assembly.config
        with outside_of_modes():
            self._encode = LanguageEngine(roles, batch_size=1, seed=config.seed).encode
            prompt, self.shape = longest_prompt(roles.model, config.data)
            repeated = Repeated(self._encode, prompt)
        vars(self.assembly)["learnable_prompts"] = self.assembly.train_prompts
        if self.assembly.has_separate_engine:
            self.assembly.engine.encode = repeated
        else:
            self._decoding = BriefDecoding(self, repeated)
            self.assembly.engine = self._decoding
            if not self.samples:
                self.assembly.engine = GivenResponses(self)
                self.assembly.engine.encode = repeated
        if self.pretending is None:
            return
        for part in self.parts():
            alike(part, self.counter)
            recompute_alike(part, self.counter)  # ranks exchange weights around layers, never inside of them
        every, run, credit = roles.distribute, roles.run, config.algorithm.credit

        def known(name: str, function: Callable[[Any], Any]) -> Any:
            """Zeros in the place of what is unknown: advantages and choices are made of it."""
            found = run(name, function)
            if torch.is_grad_enabled():
                return found
            return tuple(map(as_zeros, found)) if isinstance(found, tuple) else as_zeros(found)

        def credited(annotated: Any) -> Any:
            with outside_of_modes():
                return credit(annotated)

        def shared_out(function: Callable[[Any], Any], parts: Any) -> Any:
            return every(Once(function, len, self.counter), parts)

        replaced: Any = roles
        replaced.run, replaced.distribute = known, shared_out
        object.__setattr__(config.algorithm, "credit", credited)

    def caches(self) -> Iterator[Any]:
        """What is kept from one batch to the next: tokens and pixels of prompts, in the memory of the machine."""
        return iter(())

    def in_full(self, job: ResponseJob) -> tuple[ResponseJob, dict[str, int]]:
        """A job whose responses are all turns of a dialogue, and what is kept between turns; see ``endless``.

        What an environment says counts as the policy's, as far as a dialogue's own limit allows.
        """
        environment, sampling = self.assembly.config.environment, job.sampling
        if environment is None:
            return job, {}
        longest = environment.longest(sampling.max_new_tokens)
        encode: Any = self.assembly.engine.encode  # what ``shorten`` has put in its place
        kept = {}
        if environment.max_turns > 1 and self.assembly.roles.model.keeps_turns:
            tokens = encode.length + max(longest - sampling.max_new_tokens, 0)
            kept = {"conversations": len(job.prompts), "tokens": tokens, "most": environment.kept_bytes}
        return replace(job, sampling=replace(sampling, max_new_tokens=longest)), kept

    def again(self) -> None:
        """Nothing is done anew: what it cost at its peak is counted again."""

    def baseline(self) -> None:
        """There is none."""

    def validate(self) -> None:
        """Decode the first batch of responses to held-out questions, and to those of every suite."""
        assembly, config = self.assembly, self.assembly.config
        if assembly.needs.heads:
            self._judge()
            return
        if assembly.has_separate_engine:
            return  # which answers, with the memory that it has taken
        job = assembly.evaluation(assembly).job(config.validation.n, None)
        self._answer(first_batch(job, config, assembly.ranks.rows))
        for runner in suite_runners(assembly, made_up_prompts):
            data = data_options(runner.suite)
            with outside_of_modes():
                prompt, _ = longest_prompt(assembly.roles.model, data)
                encode = Repeated(self._encode, prompt)
            with self._decoding.encoding(encode):
                self._answer(first_unit(runner))

    def _answer(self, job: ResponseJob) -> None:
        with self.assembly.roles.shards.gathered_late(["policy"]):
            self._decoding.sample(job)

    def _judge(self) -> None:
        """Have a reward model judge responses as it learns from them."""
        assembly = self.assembly
        evaluation = assembly.evaluation(assembly)
        with assembly.roles.shards.gathered_late(["policy"]):
            evaluation.sampled(evaluation.job(1, None).share(assembly.ranks.rows))


class GivenResponses(ResponseEngine):
    """Stands in for an engine in a process of its own: responses of the greatest length, without a network."""

    def __init__(self, half: LanguageHalf) -> None:
        super().__init__()
        self.half, self.seed = half, half.assembly.config.seed

    @property
    def roles(self) -> LanguageRoles:  # type: ignore[override]
        roles: LanguageRoles = self.half.assembly.roles
        return roles

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        return responses(self.encode(job.prompts), self.half.in_full(job)[0], self.roles.model.axes)


class BriefDecoding(LanguageEngine):
    """Decodes the first batch of a job; all responses are as long."""

    def __init__(self, half: LanguageHalf, encode: Callable[[Sequence[Prompt]], Gathered[Encoded]]) -> None:
        config = half.assembly.config
        super().__init__(half.assembly.roles, batch_size=config.rollout.batch_size, seed=config.seed)
        self.half, self.encode = half, encode
        self._known: dict[Any, Peak] = {}  # what batches of responses have cost

    @contextmanager
    def encoding(self, encode: Any) -> Iterator[None]:
        """Prompts are others in this context."""
        before, self.encode = self.encode, encode
        try:
            yield
        finally:
            self.encode = before

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        half = self.half
        job, kept = half.in_full(job)
        found = responses(self.encode(job.prompts), job, self.roles.model.axes)
        first = replace(job.select(slice(0, self.batch_size)), finished=None)
        encode: Any = self.encode
        how = job.sampling
        chosen = how.top_k, how.top_p, how.min_p, how.repetition_penalty  # what probabilities are sorted for
        alike = len(first.prompts), encode.length, how.max_new_tokens, chosen
        if half.pretending is not None and alike in self._known:
            with self.roles.sampling():
                half.counter.repeated(self._known[alike])
            return found
        with half.counter.span() as span:
            self._decode(first, kept)
        self._known[alike] = span
        return found

    def _decode(self, first: ResponseJob, kept: dict[str, int]) -> None:
        half, pretending = self.half, self.half.pretending
        before = 0 if pretending is None else pretending.integer
        with endless(half.counter, skips=pretending is not None, **kept):
            if pretending is not None:
                pretending.integer = 0  # of responses with odd log-probs
            super().sample(first)
        if pretending is not None:
            pretending.integer = before


def responses(prompts: Gathered[Encoded], job: ResponseJob, axes: int) -> tuple[Completion, list[Response]]:
    """Responses of the greatest length."""
    with outside_of_modes():
        count, longest = len(job.prompts), job.sampling.max_new_tokens
        completion = Completion.of_text(
            prompts, torch.full((count, longest), ORDINARY), torch.full((count,), longest), axes=axes,
            # unlike what the trainer finds, so that it recomputes where it may
            logprob=torch.full((count, longest), -1.0), finished=torch.ones(count, dtype=torch.bool),
        )  # fmt: skip
    return completion, [Response(SAID)] * count


class Repeated:
    """Stands in for the encoder of prompts: all are as long as the one that it has encoded."""

    def __init__(self, encode: Callable[[Sequence[Prompt]], Gathered[Encoded]], prompt: Prompt) -> None:
        self.prompt, self._one = prompt, encode([prompt]).table

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return self._one.lengths[0]

    def __call__(self, prompts: Sequence[Prompt]) -> Gathered[Encoded]:
        rows = {uid: row for row, uid in enumerate(dict.fromkeys(prompt.uid for prompt in prompts))}
        table = Encoded.cat([self._one] * len(rows))
        return Gathered(table=table, index=torch.tensor([rows[prompt.uid] for prompt in prompts]))


def as_zeros(value: Tensor) -> Tensor:
    """Zeros in the place of a tensor without values; any other as it is."""
    if not is_fake(value):
        return value
    return torch.from_numpy(np.zeros(tuple(value.shape), np.float32))


@contextmanager
def outside_of_modes() -> Iterator[None]:
    """Nothing is pretended and nothing counted in this context."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        yield
