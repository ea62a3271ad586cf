"""A language model's run, shortened: all prompts are the longest, and two tokens of a batch's responses are decoded.

The cache of keys and values at the responses' greatest length is a sum, and so is what vLLM takes: it is not run. What
classes of transformers can do beside their own forward is measured on a tiny model of each, as log-probs of a forecast
have no values that could be compared.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from burnish.environments.drawing import Draw
from burnish.evaluation.suite import data_options
from burnish.language import sampling
from burnish.language.assembly import LanguageAssembly
from burnish.language.config import LanguageConfig
from burnish.language.dialogues import KEPT
from burnish.language.engine import LanguageEngine, ResponseJob
from burnish.language.layers import grown, most_columns
from burnish.language.model.capabilities import Capabilities, plannable
from burnish.language.model.forwards import switch
from burnish.language.model.loading import load_outline, read_config
from burnish.language.model.universal import LanguageModel
from burnish.language.records import ResponseRecord
from burnish.language.roles import LanguageRoles
from burnish.language.teacher_inputs import options_of
from burnish.language.vllm.process import BUCKET
from burnish.options import LARGEST
from burnish.plan.counter import BATCH, CACHES, MOVED, WEIGHTS, LiveBytes, Peak, shown
from burnish.plan.fakes import is_fake
from burnish.plan.made_up import FILLER, TEXT, UNLIMITED, longest_prompt
from burnish.plan.measure import Half
from burnish.plan.repeats import Once, compute_once
from burnish.rewards.text.base import Response
from burnish.training.ranks import own_rows
from burnish.types.batch import Gathered
from burnish.types.completion import Completion, Encoded
from burnish.types.prompt import Prompt
from burnish.utils.errors import UserError

SAID = "a response"
ORDINARY = 7  # a token that no response ends with
WRITTEN = 2  # tokens of a response that are decoded


class LanguageHalf(Half):
    """What is a language model's own in a forecast."""

    def __init__(self, assembly: LanguageAssembly, *given: Any, **named: Any) -> None:
        super().__init__(assembly, *given, **named)
        self.decodes = self.samples and not assembly.has_separate_engine
        self.bucket = BUCKET if self.samples and assembly.has_separate_engine else 0
        replaced: Any = assembly
        replaced.engine = self.engine = MadeUpResponses(self)

    @staticmethod
    def without_values(config: Any, counter: LiveBytes, *, shared: bool) -> AbstractContextManager[Any]:
        return known_capabilities(config, counter, shared=shared)

    def parts(self) -> Iterator[nn.Module]:
        roles: LanguageRoles = self.assembly.roles
        yield from super().parts()
        yield from (head for head in (roles.value_head, roles.reward_head) if head is not None)

    def made_up(self, count: int) -> dict[str, Any]:
        """Made-up prompts, and responses of the greatest length where the run learns from given ones."""
        found, config = super().made_up(count), self.assembly.config
        given = not config.online and not self.assembly.needs.heads  # of a reward model they have labels
        learned = {"responses": given, "imitated": config.supervised is not None}
        if not any(learned.values()):
            return found
        with _disable_current_modes():
            reader, longest = load_outline(config.model), config.longest
        words = bisect_right(range(1, longest), longest, key=lambda count: len(reader.response_ids(FILLER * count)))
        members = 2 if self.assembly.needs.data == "preferences" else 1
        records = [ResponseRecord(prompt, (FILLER * max(words, 1),) * members) for prompt in found["train_prompts"]]
        return found | {name: records for name, needed in learned.items() if needed}

    def learned_at_once(self, rows: int) -> float:
        config = self.assembly.config
        tokens = rows * (self.engine.encode.length + config.longest if config.online else 1)
        tokens *= self.assembly.roles.model.members
        return float(config.trainer.micro_batch_tokens / tokens)

    def prepare(self) -> None:
        roles, config = self.assembly.roles, self.assembly.config
        drawing = config.environment.generators() if self.samples and config.environment is not None else ()
        self.generators = [self._generator(**arguments) for arguments in drawing]
        vars(self.assembly)["learnable_prompts"] = self.assembly.train_prompts
        for teacher in roles.teachers.all:
            if teacher.options.reads_more:  # made-up rewards don't tell which response did well
                teacher.options = replace(teacher.options, solution=-LARGEST)
        every, run, credit = roles.distribute, roles.run, config.algorithm.compute_advantages

        def known(name: str, function: Callable[[Any], Any]) -> Any:
            """Zeros in the place of what is unknown: advantages and choices are made of it."""
            found = run(name, function)
            return found if torch.is_grad_enabled() else tree_map(as_zeros, found)

        def credited(annotated: Any) -> Any:
            with _disable_current_modes():
                return credit(annotated)

        def distributed(function: Callable[[Any], Any], parts: Sequence[Any]) -> Any:
            """Ranks that are pretended give what this one does, whose parts may have other numbers of rows."""
            found = every(Once(function, self.counter, self.gathered), parts)
            return [
                [value if len(value) == len(rows) else value.new_zeros(len(rows), *value.shape[1:]) for value in some]
                for some, rows in zip(found, parts, strict=True)
            ]

        replaced: Any = roles
        replaced.run, replaced.distribute = known, distributed
        object.__setattr__(config.algorithm, "compute_advantages", credited)

    def begin(self) -> None:
        super().begin()
        roles, config = self.assembly.roles, self.assembly.config
        roles.micro_batch_size = max(config.trainer.micro_batch_tokens // roles.model.members, 1)
        roles._settled = None
        self.engine.batch_size = config.rollout.batch_size
        self.engine.begin(roles, config.data)

    def _generator(self, *, reward: Any, **arguments: Any) -> Draw:
        """What draws by the policy's prompts; its reward is counted with others."""
        with self.counter.made_as(WEIGHTS):
            drawing = Draw(**arguments)
        parts = drawing.model.pipeline.components
        compute_once((part for part in parts.values() if isinstance(part, nn.Module)), self.counter)
        return drawing

    def validate(self) -> None:
        assembly = self.assembly
        if assembly.needs.heads:  # a reward model judges responses as it learns from them
            evaluation = assembly.evaluation(assembly)
            with assembly.roles.shards.gathered(["policy"]):
                evaluation.sampled(evaluation.job(1, None).share(partial(own_rows, assembly.sampling_ranks)))
        elif not assembly.has_separate_engine:  # which answers with the memory that it has taken
            super().validate()

    def turn_to(self, evaluation: Any) -> None:
        self.engine.begin(self.assembly.roles, data_options(evaluation.suite))

    def draw(self, job: ResponseJob) -> None:
        with self.assembly.roles.shards.gathered(["policy"]):
            self.engine.decode(job)


class MadeUpResponses(LanguageEngine):
    """Responses of the greatest length to the longest prompt. The first tokens of a batch of them are decoded."""

    encode: Any

    def __init__(self, half: LanguageHalf) -> None:
        self.half, self.seed, self.metrics = half, half.assembly.config.seed, {}
        self.batch_size = half.assembly.config.rollout.batch_size

    def begin(self, roles: LanguageRoles, data: Any) -> None:
        """Have all prompts be the longest that options of data let through."""
        self.roles = roles
        with _disable_current_modes():
            encode = LanguageEngine(roles, batch_size=1, seed=self.seed).encode
            self.encode = Repeated(encode, longest_prompt(roles.model, data))

    def sample(self, job: ResponseJob) -> tuple[Completion, list[Response]]:
        if self.half.decodes:
            self.decode(job)
        job = self._in_full(job)
        for drawing in self.half.generators:
            with self.half.counter.span() as span:
                drawing(SAID, seed=0)
            for _ in job.prompts[1:]:
                self.half.counter.repeated(span)
        prompts = self.encode(job.prompts)
        with _disable_current_modes():
            count, longest = len(job.prompts), job.sampling.max_new_tokens
            completion = Completion.of_text(
                prompts, torch.full((count, longest), ORDINARY), torch.full((count,), longest),
                axes=self.roles.model.axes,
                # unlike what the trainer finds, so that it recomputes where it may
                logprob=torch.full((count, longest), -1.0), finished=torch.ones(count, dtype=torch.bool),
            )  # fmt: skip
        return completion, [Response(SAID)] * count

    def _in_full(self, job: ResponseJob) -> ResponseJob:
        """A job whose responses are all turns of a dialogue: what an environment says counts as the policy's."""
        environment = self.half.assembly.config.environment
        if environment is None:
            return job
        longest = environment.longest(job.sampling.max_new_tokens)
        return replace(job, sampling=replace(job.sampling, max_new_tokens=longest))

    def decode(self, job: ResponseJob) -> None:
        """Decode the first tokens of the first batch, beside a cache for all tokens and what dialogues keep."""
        counter, model, job = self.half.counter, self.roles.model, self._in_full(job)
        first, longest = job.select(slice(0, self.batch_size)), job.sampling.max_new_tokens
        few = replace(
            job.sampling, max_new_tokens=min(WRITTEN, longest), min_new_tokens=0,
            temperature=job.sampling.temperature or 1.0,  # tokens are chosen, also greedy ones
        )  # fmt: skip
        rows, prompt = len(first.prompts), self.encode.length
        more = cache_bytes(model, rows, prompt, longest) - cache_bytes(model, rows, prompt, few.max_new_tokens)
        held: list[Tensor] = []
        begun: list[Counter[str]] = []  # the work before each token

        def choose(weights: Tensor, noise: Tensor) -> Tensor:
            """An ordinary token, by no probabilities. The cache grows once the prompts are read, and no longer beside
            what reading them takes."""
            begun.append(Counter(counter.done))
            if not held:
                with counter.made_as(CACHES):
                    held.append(torch.empty(max(more, 0) + self._kept(job), dtype=torch.uint8))
            return torch.full((len(weights),), ORDINARY)

        odd = patch.object(self.half.pretending, "integer", 0)  # no probability is
        with counter.span() as span, patch.object(sampling, "choose", choose), odd:
            super().sample(replace(first, sampling=few, finished=None))
        token = begun[-1] - begun[-2:][0]  # of the last one; nothing where one is all
        token[MOVED] += max(more, 0) // 2  # that are read of the cache, on average
        left, batches = longest - few.max_new_tokens, len(job.prompts) / rows
        whole = {kind: batches * (amount + left * token[kind]) - amount for kind, amount in span.work.items()}
        counter.repeated(Peak(work=Counter(whole)))

    def _kept(self, job: ResponseJob) -> int:
        """Bytes of conversations that are kept for their next turn."""
        environment, model = self.half.assembly.config.environment, self.roles.model
        if environment is None or environment.max_turns == 1 or not model.keeps_turns:
            return 0
        written = self.half.assembly.config.rollout.max_new_tokens
        most = (environment.max_turns - 1) * written  # nothing follows the last turn
        tokens = self.encode.length + min(most, environment.max_length or most)
        rows = len(job.prompts) * (self.half.counter.times.get(BATCH, 1) if job.purpose == "rollout" else 1)
        width = sum(heads * width for heads, width in key_sizes(model.network.config.get_text_config()))
        return int(min(rows * tokens * 2 * width * model.compute.itemsize, KEPT))


def cache_bytes(model: Any, rows: int, prompt: int, written: int) -> int:
    """Bytes of keys and values, with the layer that is there twice while memory grows.

    Args:
        model: that decodes.
        rows: at once.
        prompt: tokens of each.
        written: tokens of each response.
    """
    text = model.network.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    tokens = prompt + written
    if model.capabilities.fast:  # see ``burnish.language.layers``
        limit = most_columns(tokens)
        columns = grown(0, prompt, limit)
        while columns < tokens:
            columns = grown(columns, columns + 1, limit)
        held = [columns] * len(kinds)
    elif model.capabilities.cache == "none":
        return 0
    else:
        window = getattr(text, "sliding_window", None) or tokens
        most = {"full_attention": tokens, "sliding_attention": min(tokens, window)}
        held = [most.get(kind, 0) for kind in kinds]  # recurrent states don't grow
    sizes = [columns * heads * width for columns, (heads, width) in zip(held, key_sizes(text), strict=True)]
    return int((sum(sizes) + max(sizes)) * 2 * rows * model.compute.itemsize)


def key_sizes(text: Any) -> list[tuple[int, int]]:
    """Heads of keys, and their width, of each layer by a configuration of transformers."""
    layers = [text.per_layer_config[i] for i in range(text.num_hidden_layers)]
    return [
        (
            getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads,
            getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads,
        )
        for layer in layers
    ]


class Repeated:
    """Stands in for the encoder of prompts: all are as long as the one that it has encoded."""

    def __init__(self, encode: Callable[[Sequence[Prompt]], Gathered[Encoded]], prompt: Prompt) -> None:
        self._one = encode([prompt]).table

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
    return torch.from_numpy(np.zeros(tuple(value.shape), np.float32)) if is_fake(value) else value


BATCHED = 8192  # tokens of prompts that vLLM computes at once on cards of 70 GB and more
GRAPHS = 1 << 30  # bytes of its CUDA graphs and workspaces, about


@dataclass(frozen=True)
class VllmForecast:
    """What a vLLM of a pool holds on each of its GPUs, in bytes."""

    fraction: float  # of a GPU's memory that is vLLM's
    shares: bool  # its first GPU with a process of the pool
    sleeps: bool  # it gives its memory back while the policy learns
    weights: int
    working: int  # of a forward pass, with CUDA graphs: a rough figure
    token: int  # of the cache, for each token
    cache: int | None  # as it is set; None is what the fraction leaves
    longest: int  # tokens that a text may have, for which vLLM must have room
    expected: int  # tokens of the longest prompt and response of the run
    at_once: int  # responses that are written at once

    def room(self, memory: int) -> int:
        """What is left for the cache, on GPUs of so many bytes; negative where nothing is."""
        return int(self.fraction * memory) - self.weights - self.working if self.cache is None else self.cache

    def takes(self, memory: int) -> int:
        """All of it, on GPUs of so many bytes."""
        return int(self.fraction * memory) if self.cache is None else self.weights + self.working + self.cache

    def complaint(self, memory: int) -> str:
        """Why vLLM would not start on GPUs of so many bytes; empty where it would."""
        room, least = self.room(memory), self.token * self.longest
        if room >= least:
            return ""
        options = "raise rollout.vllm.memory_fraction or rollout.vllm.tensor_parallel"
        if self.cache is not None:
            options = "raise rollout.vllm.arguments.kv_cache_memory_bytes"
        if self.longest > self.expected:
            options += f", or set rollout.vllm.max_model_len={self.expected}, which is what this run needs"
        return (
            f"vLLM has {f'{shown(room)} left' if room > 0 else 'nothing left'} for its cache, beside "
            f"{shown(self.weights)} of weights and about {shown(self.working)} to compute with, and one text of "
            f"{self.longest} tokens needs {shown(least)}: {options}"
        )

    def line(self, memory: int | None) -> str:
        """What it holds on each of its GPUs, in one line; with their memory also what is left for the cache."""
        text = (
            f"vLLM holds {shown(self.weights)} of weights on each of its GPUs, and needs {shown(1000 * self.token)} of "
            f"cache for 1,000 tokens; a prompt and a response have up to {self.expected:,}"
        )
        if memory is None:
            return f"{text}."
        room = max(self.room(memory), 0)
        together = min(room // (self.token * self.expected), self.at_once)
        return (
            f"{text}. Of {shown(memory)} it takes {shown(self.takes(memory))}, which leaves {shown(room)} for cache: "
            f"{together} of {self.at_once} responses (rollout.vllm.max_num_seqs) at once at their greatest length."
        )


def vllm_forecast(config: LanguageConfig, model: LanguageModel, *, apart: bool) -> VllmForecast:
    """The forecast of one vLLM.

    Args:
        config: of a run with rollout.vllm.
        model: the loaded policy's.
        apart: vLLM is beside a worker that trains nothing.

    Raises:
        UserError: the model's configuration does not tell the size of its cache.
    """
    options = config.rollout.vllm
    assert options is not None, "rollout.vllm is null"
    ranks, each = options.tensor_parallel, model.compute.itemsize
    network: Any = model.network
    text = network.config.get_text_config()
    try:
        # each rank has a head at least
        token = 2 * each * sum(-(-heads // ranks) * width for heads, width in key_sizes(text))
        states = 4 * text.hidden_size + 2 * text.intermediate_size // ranks
        known = options.max_model_len or text.max_position_embeddings
        logits = 2 * 4 * options.max_num_seqs * text.vocab_size
    except AttributeError as error:
        raise UserError(f"what vLLM's cache takes can't be told from config.json: {error}") from None
    prompt = config.data.max_prompt_length or TEXT + UNLIMITED
    weights = {id(one): one.numel() for name, one in network.named_parameters() if ".lora_" not in name}
    return VllmForecast(
        fraction=options.memory_fraction,
        shares=options.devices is None and (ranks == 1 or not apart),
        sleeps=options.sleep,
        weights=sum(weights.values()) * each // ranks,
        working=BATCHED * states * each + logits + GRAPHS,
        token=token,
        cache=options.arguments.get("kv_cache_memory_bytes"),
        longest=known,
        expected=min(prompt + config.longest, known),
        at_once=options.max_num_seqs,
    )


@contextmanager
def known_capabilities(config: LanguageConfig, counter: LiveBytes, *, shared: bool) -> Iterator[None]:
    """Have models take over what was measured of the tiny ones of their classes.

    Args:
        config: of a language model's run, with models that can be read here.
        counter: which will be active.
        shared: ranks share the networks, so that each holds a copy of their first layers for as long as it compares.
    """
    teachers = getattr(config.algorithm, "teachers", None) or ()
    models = (config.model, *(options_of(config.model, one) for one in teachers if one.path is not None))
    read = dict(map(read_config, models))
    known = {path: measured(str(about.get("model_type"))) for path, about in read.items()}
    learn = LanguageModel._learn_media

    def best(self: LanguageModel) -> Capabilities:
        first = self.first_layers().parameters()
        counter.label(WEIGHTS, [torch.empty_like(weight, dtype=torch.float32) for weight in first])
        return known[self.path]

    def tried(self: LanguageModel, _: Capabilities | None = None) -> None:
        if shared:
            counter.label(WEIGHTS, [torch.empty_like(weight) for weight in self.first_layers().parameters()])
        self.capabilities = found = known[self.path]
        if found.packed and not plannable(self, found):
            self.capabilities = replace(found, packed=False, fast=False)
        if self.capabilities.packed:
            switch(self.network, self.text(self.network), on=True, tower=not found.unpacked)

    def learned(self: LanguageModel) -> Any:
        with _disable_current_modes():  # processors look at values
            return learn(self)

    with patch.multiple(LanguageModel, best=best, try_out=tried, _learn_media=learned):
        yield


@cache
def measured(model_type: str) -> Capabilities:
    """What a class can do by its tiny model; without one, what nearly all can."""
    from burnish.models.tiny import LANGUAGE, describe
    from burnish.models.tiny.language import write

    try:
        tiny = describe(model_type, LANGUAGE)
    except UserError:
        return Capabilities(padded=True, cache="padded")
    with TemporaryDirectory() as folder:
        write(tiny, Path(folder), seed=0)
        model = LanguageModel.load(Path(folder), dtype=torch.float32, compute=torch.float32, device="cpu")
        model.try_out()
    return model.capabilities
