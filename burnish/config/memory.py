"""Contradictions of options for small cards and fast kernels: quantised weights, attention, compiled blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from burnish.utils.installed import attention_complaint

if TYPE_CHECKING:
    from burnish.config.run import RunConfig


def memory_complaints(config: RunConfig) -> Iterator[str]:
    """What of them contradicts itself or another option, or lacks a library."""
    if config.model.compile and config.sharding.offload and _ranks(config) == 1:
        yield (
            "model.compile and sharding.offload are true, but compiled blocks are not shown to work rightly with "
            "weights that come to the GPU block by block; leave one of them out"
        )
    if config.model.compile and _ranks(config) > 1:
        yield (
            f"model.compile is true, but the {config.pools.train.size} processes of pools.train gather weights between "
            "blocks, which compiled ones are not shown to do rightly; leave it out, or train with one process"
        )
    yield from _offloaded(config)
    attention = config.model.attention
    if attention != "auto" and config.task == "image-text-to-text" and _ranks(config) > 1:
        yield (
            f"model.attention is {attention}, but the {_ranks(config)} processes of pools.train hold the network in "
            "shards, on which it can't be compared with sdpa at the start; leave it out"
        )
    if complaint := attention_complaint(attention):
        yield f"model.attention={attention} {complaint}"
    fewer = config.model.quantization
    if fewer is None:
        return
    text = getattr(fewer, "text_encoders", None)
    if fewer.weights is None and text is None:
        yield "model.quantization is given, but names no weights to quantise; set model.quantization.weights=nf4"
    if fewer.weights is None:
        if fewer.exclude:
            yield "model.quantization.exclude is never read when model.quantization.weights is null; leave it out"
        return
    yield from _frozen(config, f"model.quantization.weights is {fewer.weights}")


def _offloaded(config: RunConfig) -> Iterator[str]:
    """What can't be kept on the CPU."""
    shards = _ranks(config) > 1 and not has_quantized_weights(config)
    for section, optimizer in config.optimizers.items():
        if optimizer.offload and shards:
            yield (
                f"{section}.offload is true, but the {_ranks(config)} processes of pools.train shard the states; set "
                "sharding.offload=true, which keeps shards on the CPU with their weights"
            )
        elif optimizer.offload and config.sharding.offload:
            yield (
                f"{section}.offload and sharding.offload are true, and the second keeps the optimizer's states in CPU "
                f"memory, too; leave {section}.offload out"
            )
        if optimizer.offload and config.model.device == "cpu":
            yield f"{section}.offload is true, but model.device is cpu, where all memory is; leave it out"
    if config.ema is not None and config.ema.offload:
        if config.model.device == "cpu":
            yield "ema.offload is true, but model.device is cpu, where all memory is; leave it out"
        elif config.sharding.offload:
            yield (
                "ema.offload and sharding.offload are true, and the second keeps the average in CPU memory, too; leave "
                "ema.offload out"
            )
    if config.sharding.offload and config.model.device == "cpu":
        yield "sharding.offload is true, but model.device is cpu, where all memory is; leave it out"
    if not getattr(config.model, "offload", False):
        return
    if config.model.device == "cpu":
        yield "model.offload is true, but model.device is cpu, where all memory is; leave it out"
    if getattr(config.algorithm.needs(), "reward_gradients", False):
        yield (
            f"model.offload is true, but {config.algorithm.name} follows gradients of rewards through the VAE, which "
            "has to stay on the GPU for that; leave it out"
        )
    fewer = config.model.quantization
    text = getattr(fewer, "text_encoders", None)
    if text not in (None, "fp8_cast"):
        yield (
            f"model.offload is true and model.quantization.text_encoders is {text}, whose weights can't be copied "
            "back and forth; leave one of them out, or set model.quantization.text_encoders=fp8_cast"
        )


def _frozen(config: RunConfig, what: str) -> Iterator[str]:
    """What quantised weights can't do: learn, be merged with, be sharded, be sent."""
    lora = config.model.lora
    if lora is None:
        yield f"{what}, but model.lora is null, and all weights are trained; train adapters with model.lora.rank=16"
    elif lora.dora:
        yield (
            f"{what} and model.lora.dora is true, which needs the lengths of rows of plain weights; leave one of them "
            "out"
        )
    if getattr(config.rollout, "merge_lora", None) is True:
        yield (
            f"{what} and rollout.merge_lora is true, but nothing can be added to quantised weights; set "
            "rollout.merge_lora=auto, which samples with the adapter beside them"
        )
    if getattr(config.rollout, "vllm", None) is not None:
        yield (
            f"{what}, but vLLM is sent weights with the adapters merged into them; set rollout.engine=burnish and "
            "rollout.vllm=null, or leave model.quantization out"
        )
    if config.sharding.offload:
        yield (
            f"{what} and sharding.offload is true, but quantised weights can't be copied back and forth; leave one of "
            "them out"
        )
    if config.runtime == "ray" and config.pools.rollout is not None:
        yield (
            f"{what}, but a rollout pool is sent plain weights once at its start; sample on the trainer "
            "(pools.rollout=null), or leave model.quantization out"
        )


def has_quantized_weights(config: RunConfig) -> bool:
    """Whether the network that is trained is stored in fewer bits, so that every process holds all of it."""
    return config.model.quantization is not None and config.model.quantization.weights is not None


def _ranks(config: RunConfig) -> int:
    return config.pools.train.size if config.runtime == "ray" else 1
