"""The phases of a run that trains a language model, with its own code, on responses of the greatest length."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from burnish.forecast.counter import CACHES, GRADIENTS, OPTIMIZER, WEIGHTS, LiveBytes
from burnish.forecast.fakes import is_fake
from burnish.forecast.prompts import Shape, longest_prompt
from burnish.rollout.requests import numbered
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt
from burnish.types.rollout import ScoredResponses, Scores

if TYPE_CHECKING:
    from burnish.config.language import LanguageConfig
    from burnish.forecast.fakes import Pretending
    from burnish.tasks.language.assembly import LanguageAssembly

MICRO_BATCHES = 2  # of an optimizer step that is forecast: the second one adds to gradients that are there
FEW = 16  # tokens of responses that are to cost nothing
ORDINARY = 7  # a token that no response ends with


@dataclass(frozen=True)
class Rows:
    """As much of a batch as costs a rank what all of it would."""

    prompts: int
    n: int  # responses of each
    longest: int  # tokens of each

    @property
    def count(self) -> int:
        """Responses."""
        return self.prompts * self.n


def learned_rows(config: LanguageConfig, ranks: int) -> Rows:
    """Rows that fill some micro-batches on every rank, or all of an optimizer step where those are fewer."""
    n, longest = config.sampled_per_prompt, config.rollout.max_new_tokens
    question = config.data.max_prompt_length or 0
    each = max((config.trainer.micro_batch_tokens - question) // (longest + (0 if n > 1 else question)), 1)
    step = config.trainer.mini_batch_size or config.samples
    rows = min(MICRO_BATCHES * each * ranks, step)
    own = min(n, max(rows, 2)) if n > 1 else 1
    return Rows(max(math.ceil(rows / own), 1), own, longest)


def first_rows(config: LanguageConfig, ranks: int) -> Rows:
    """Rows of the update that only has to make the optimizer's states: one a rank, of few tokens."""
    own = min(config.sampled_per_prompt, 2)
    return Rows(math.ceil(ranks / own), own, min(FEW, config.rollout.max_new_tokens))


class LanguagePhases:
    """Runs the phases of one rank under the counter, each with the code that a run has for it."""

    def __init__(self, assembly: LanguageAssembly, counter: LiveBytes, pretending: Pretending | None) -> None:
        """Args: ``pretending`` is None where tensors are real and are counted all the same."""
        self.assembly, self.counter, self.pretending = assembly, counter, pretending
        self.config: LanguageConfig = assembly.config
        self.shape: Shape | None = None

    def run(self) -> None:
        """All of them, and two updates: the optimizer's states appear in the first."""
        self.load()
        self.sample()
        ranks = self.assembly.ranks.size
        for update, rows in enumerate((first_rows(self.config, ranks), learned_rows(self.config, ranks)), start=1):
            scored = self.scored(update, rows)
            with self.counter.phase("annotate"), self._known_results():
                annotated = self.assembly.workers.annotate(scored)
            with outside_of_modes():
                batch, _ = self.assembly.workers.credit(annotated)
            with self.counter.phase("update"):
                self.assembly.workers.update(batch, update)
            with self.counter.phase("publish"):
                self.assembly.workers.publish(update)

    def load(self) -> None:
        """The networks, what samples with them and what learns them; and the prompt that all of this is tried on."""
        with self.counter.phase("load", WEIGHTS):
            roles = self.assembly.roles
            _ = self.assembly.engine
        with self.counter.phase("load"):
            workers = self.assembly.workers
        for group in workers.groups:
            group.step = self._stepping(group.step)  # type: ignore[method-assign]
        trained = [weight for group in workers.groups for weight in group.parameters.values()]
        for weight in trained:
            weight.register_post_accumulate_grad_hook(lambda one: self.counter.label(GRADIENTS, [one.grad]))
        with outside_of_modes():
            prompt, self.shape = longest_prompt(roles.model, self.config.data)
            self.prompts = Repeated(self.assembly.engine.encode, prompt)
        self.assembly.engine.encode = self.prompts

    def sample(self) -> None:
        """Responses of the greatest length, as many at a time as the run decodes."""
        from burnish.tasks.language.engine import LanguageEngine, ResponseJob

        engine = self.assembly.engine
        if not isinstance(engine, LanguageEngine):
            return
        config, ranks = self.config, self.assembly.ranks.size
        rows = min(-(-config.samples // ranks), config.rollout.batch_size)
        n = config.sampled_per_prompt
        prompts, group, sample = numbered(self.prompts.prompts(-(-rows // n)), n)
        job = ResponseJob(
            prompts=prompts[:rows], group=group[:rows], sample=sample[:rows], purpose="rollout", update=1,
            sampling=self.assembly.sampling,
        )  # fmt: skip
        with self.counter.phase("sample"), endless(self.counter, skips=self.pretending is not None), self._answers(0):
            engine.sample(job)

    def scored(self, update: int, rows: Rows) -> ScoredResponses:
        """Responses with rewards, all of the same length."""
        config, longest = self.config, rows.longest
        prompts, group, sample = numbered(self.prompts.prompts(rows.prompts), rows.n)
        with outside_of_modes():
            generator = np.random.default_rng(update)
            reward = torch.from_numpy(generator.random(rows.count, dtype=np.float32))
            length = torch.full((rows.count,), longest)
            trace = Completion.of_text(
                self.prompts(prompts), torch.full((rows.count, longest), ORDINARY), length,
                axes=self.assembly.roles.model.axes, logprob=torch.full((rows.count, longest), -1.0),
                finished=torch.ones(rows.count, dtype=torch.bool),
            )  # fmt: skip
            scores = Scores(
                reward=reward, missing=torch.zeros(rows.count, dtype=torch.bool), components=reward[:, None],
                names=("forecast",), weights=(1.0,), notes=[""] * rows.count,
            )  # fmt: skip
            return ScoredResponses(
                prompts=prompts, group=group, sample=sample, trace=trace, scores=scores,
                greedy=torch.zeros(rows.count), turn_rewards=torch.zeros(rows.count, 0), limit=config.rollout.max_new_tokens,
                update=update, version=update - 1, seed=config.seed,
            )  # fmt: skip

    def _stepping(self, step: Callable[[], None]) -> Callable[[], None]:
        def stepped() -> None:
            with self.counter.phase("update", OPTIMIZER):
                step()

        return stepped

    @contextmanager
    def _answers(self, integer: int) -> Iterator[None]:
        """What is asked of integers that nobody knows has this answer."""
        if self.pretending is None:
            yield
            return
        before, self.pretending.integer = self.pretending.integer, integer
        try:
            yield
        finally:
            self.pretending.integer = before

    @contextmanager
    def _known_results(self) -> Iterator[None]:
        """What passes without gradients give is zeros, not unknown: advantages and choices are made of it."""
        roles = self.assembly.roles
        run = roles.run

        def known(name: str, function: Callable[[Any], Any]) -> Any:
            found = run(name, function)
            return tuple(map(as_zeros, found)) if isinstance(found, tuple) else as_zeros(found)

        roles.run = known  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            del roles.run


class Repeated:
    """Stands in for the encoder of prompts: all are as long as the one that it has encoded."""

    def __init__(self, encode: Callable[[Sequence[Prompt]], Gathered[Encoded]], prompt: Prompt) -> None:
        self.prompt, self._one = prompt, encode([prompt]).table

    @property
    def length(self) -> int:
        """Tokens of a prompt."""
        return self._one.lengths[0]

    def prompts(self, count: int) -> list[Prompt]:
        """Different prompts of this length."""
        return [Prompt(text=f"{number}") for number in range(count)]

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


@contextmanager
def endless(counter: LiveBytes, *, skips: bool) -> Iterator[None]:
    """Responses are written until their limit. With ``skips`` networks run only where the cache has changed its size:
    in every other step a rank holds what it held in the last one."""
    from burnish.language import decoding
    from burnish.language.decoding import DecodingRows
    from burnish.language.layers import Layers

    originals = decoding.choose, Layers.step, Layers.logits, DecodingRows.next_tokens
    choose, step, logits, next_tokens = originals
    held: dict[int, int] = {}
    skipped = False
    last: Tensor | None = None

    def ordinary(weights: Tensor, noise: Tensor) -> Tensor:
        return torch.full((len(weights),), ORDINARY)

    def stepping(self: Layers, x: Tensor, rotation: Tensor, cache: Any) -> Tensor:
        nonlocal skipped
        own = [one for one in vars(cache).values() if isinstance(one, Tensor)]
        size = sum(one.untyped_storage().nbytes() for one in own)
        skipped = skips and held.get(id(cache)) == size
        if skipped:
            cache.advance()
            return x
        held[id(cache)] = size
        counter.label(CACHES, own)
        return step(self, x, rotation, cache)

    def scoring(self: Layers, x: Tensor) -> Tensor:
        nonlocal last
        if not skipped or last is None or len(last) != len(x):
            last = logits(self, x)
        return last

    def choosing(self: DecodingRows, scores: Tensor, live: Any) -> Tensor:
        if not skipped:
            return next_tokens(self, scores, live)
        live.count += ~live.done
        live.position += ~live.done
        live.done = live.count >= live.limit
        return torch.full((len(live.count),), ORDINARY)

    replaced: Any = decoding
    layers: Any = Layers
    rows: Any = DecodingRows
    replaced.choose, layers.step = ordinary, stepping
    if skips:
        layers.logits, rows.next_tokens = scoring, choosing
    try:
        yield
    finally:
        replaced.choose, layers.step, layers.logits, rows.next_tokens = originals
