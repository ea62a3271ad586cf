"""What vLLM takes of a GPU, by its own arithmetic: a forecast does not run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from burnish.language.config import LanguageConfig
from burnish.language.model.universal import LanguageModel
from burnish.plan.language import key_sizes
from burnish.plan.made_up import TEXT, UNLIMITED
from burnish.utils.errors import UserError

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
        from burnish.plan.forecast import shown

        room, least = self.room(memory), self.token * self.longest
        if room >= least:
            return ""
        options = "raise rollout.vllm.memory_fraction or rollout.vllm.tensor_parallel"
        if self.cache is not None:
            options = "raise rollout.vllm.kv_cache_gb"
        if self.longest > self.expected:
            options += f", or set rollout.vllm.max_model_len={self.expected}, which is what this run needs"
        has = f"{shown(room)} left" if room > 0 else "nothing left"
        return (
            f"vLLM has {has} for its cache, beside {shown(self.weights)} of weights and about {shown(self.working)} to "
            f"compute with, and one text of {self.longest} tokens needs {shown(least)}: {options}"
        )

    def line(self, memory: int | None) -> str:
        """What it holds on each of its GPUs, in one line; with their memory also what is left for the cache."""
        from burnish.plan.forecast import shown

        held = f"vLLM holds {shown(self.weights)} of weights on each of its GPUs, and needs {shown(1000 * self.token)}"
        text = f"{held} of cache for 1,000 tokens; a prompt and a response have up to {self.expected:,}"
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
        cache=None if options.kv_cache_gb is None else int(options.kv_cache_gb * 2**30),
        longest=known,
        expected=min(prompt + config.longest, known),
        at_once=options.max_num_seqs,
    )
