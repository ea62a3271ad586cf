"""Language models from directories: checks of the files, and loading."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.language.model.tokenizer import overlaid
from burnish.models.adapters import check_adapter_files
from burnish.models.loading import attention_errors, block_count, compare_attention, placement_of, read_folder
from burnish.models.lora import AsInForward
from burnish.models.placing import rest_frozen
from burnish.models.quantization import layers_to_quantize, quantize
from burnish.models.targets import router_outputs
from burnish.options.language import ImageTokenModelOptions, LanguageLoraOptions, LanguageModelOptions
from burnish.options.model import CommonModelOptions
from burnish.registry import lookup
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object
from burnish.utils.reading import understood
from burnish.utils.weights import (
    adapter_complaint,
    complaints_about,
    quietly,
    refuse_quantized,
    tokenizer_complaint,
    without_weights,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from burnish.language.model.base import Positions
    from burnish.language.model.universal import LanguageModel
    from burnish.types.prompt import Prompt


log = logging.getLogger(__name__)

UNIVERSAL = "transformers"  # runs every class of transformers
GENERATION = "generation_config.json"
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


def read_config(options: CommonModelOptions) -> tuple[Path, dict[str, Any]]:
    """The directory that a language model is read from, and its config.json; see ``overlaid``.

    Raises:
        UserError: there is no such directory, or it is not in transformers layout.
    """
    path, config = read_folder(options, "config.json", "transformers", "model")
    return (overlaid(options, path) if isinstance(options, LanguageModelOptions) else path), config


def check_mixture(model: LanguageModel, said: str) -> None:
    """Refuse an option of routers for a model without experts.

    Args:
        model: or its outline.
        said: the option, with its value.

    Raises:
        UserError: the model is dense.
    """
    if not router_outputs(model.network):
        raise UserError(f"{said}, but {model.path} is not a mixture of experts (its layers have no routers); remove it")


def class_of(options: CommonModelOptions) -> Any:
    """The class that runs a language model."""
    if isinstance(options, ImageTokenModelOptions):
        from burnish.language.model.image_tokens import ImageTokenModel

        return ImageTokenModel
    return lookup("language model", UNIVERSAL if options.family == "auto" else options.family)


def check_files(options: CommonModelOptions) -> None:
    """Refuse a directory without weights, tokenizer or processor, or with a model_type that transformers doesn't know.

    Raises:
        UserError: files are missing or truncated; the message lists all.
    """
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path, config = read_config(options)
    refuse_quantized(config, f"model.path is {options.path}")
    written = config.get("model_type")
    if options.family in ("auto", UNIVERSAL) and (not isinstance(written, str) or written not in CONFIG_MAPPING):
        own = ", and the code that it brings (auto_map) is not run" if config.get("auto_map") else ""
        raise UserError(
            f"model.path is {options.path}, whose model_type is {written!s:.80}, which transformers "
            f"{transformers.__version__} doesn't know{own}; upgrade transformers, give another model, or name code "
            "that you trust in plugins, with AutoConfig.register and AutoModelForCausalLM.register in it"
        )
    found = list(complaints_about(path))
    if complaint := tokenizer_complaint(path):
        found.append(complaint)
    sees_or_hears = "vision_config" in config or "audio_config" in config
    if sees_or_hears and not any((path / name).is_file() for name in PROCESSORS):
        found.append(f"{path} has no {PROCESSORS[0]}, which configures its processor; download the model again")
    if complaint := adapter_complaint(path):
        found.append(complaint)
    if found:
        raise UserError("\n".join(f"model.path: {one}" for one in found))
    if (path / GENERATION).is_file():
        read_object(path / GENERATION)  # transformers goes on without one that is damaged, and so without its ends
    if options.lora is not None and options.lora.path is not None:
        check_adapter_files(options.lora)


def check_draws(options: CommonModelOptions, tokens: int) -> None:
    """Refuse a model that draws no images of this many tokens, by its configuration files alone.

    Args:
        options: of the model.
        tokens: of an image, as rollout.max_new_tokens has it.

    Raises:
        UserError: its class has no head of image tokens, nothing says how an image begins, or its images have another
            number of tokens.
    """
    from transformers import AutoModelForMultimodalLM

    from burnish.language.model.image_tokens import draws, image_length

    (path, named), config = read_config(options), _config(options)
    if config is None or not draws(AutoModelForMultimodalLM._model_mapping.get(type(config), object)):
        raise UserError(
            f"model.path is {options.path}, whose model_type {named.get('model_type')!s:.80} has no head of image "
            "tokens in transformers to draw with, as Janus has; give such a model, or rewards of responses"
        )
    how = read_object(path / GENERATION) if (path / GENERATION).is_file() else {}
    known = how | (how.get("generation_kwargs") or {})
    if lacking := [name for name in ("boi_token_id", "pad_token_id") if known.get(name) is None]:
        raise UserError(
            f"model.path is {options.path}, whose {GENERATION} has no {' and no '.join(lacking)}, without which it "
            "draws nothing; download the model again"
        )
    if tokens != (length := image_length(config)):
        raise UserError(
            f"rollout.max_new_tokens is {tokens}, but an image of {options.path} has {length} tokens; set it to that"
        )


def image_side(options: CommonModelOptions) -> int:
    """Pixels of a side of the images that a unified model draws, by config.json alone."""
    config = _config(options)
    return int(config.vq_config.num_patches * 2 ** (len(config.vq_config.channel_multiplier) - 1))


def check_readable(options: CommonModelOptions, prompts: Iterable[Prompt]) -> None:
    """Refuse prompts that show or play something to a model that reads text alone, before it is loaded.

    Raises:
        UserError: with the first such prompt.
    """
    if (prompt := next((one for one in prompts if one.media), None)) is not None:
        refuse_shown(options, f"prompt {prompt.text!r:.60} ({prompt.where}) has images, videos or sounds")


def refuse_shown(options: CommonModelOptions, what: str) -> None:
    """Refuse what is shown or played to a model that reads text alone.

    Raises:
        UserError: it does.
    """
    path, _ = read_config(options)
    if not any((path / name).is_file() for name in PROCESSORS):
        raise UserError(
            f"model.path is {options.path}, which reads text only, but {what}; give a model that sees, or remove them"
        )


def load_language_model(
    options: CommonModelOptions, *, frozen: bool = False, shared: bool = False, only_samples: bool = False
) -> LanguageModel:
    """Load the model that ``options`` describe, frozen and in evaluation mode.

    Args:
        options: which model, and in what precision.
        frozen: it stays so.
        shared: ranks will hold it together; until it is sharded, it is not read.
        only_samples: weights rest in the precision that they compute in, where that moves no bit.

    Raises:
        UserError: it can't be loaded.
    """
    import torch

    path, config = read_config(options)
    device, stored, compute = placement_of(options, frozen=frozen)
    with understood(f"model.path is {options.path}, which can't be loaded"):
        model: LanguageModel = class_of(options).load(path, dtype=stored, compute=compute, device=device)
        if config.get("auto_map"):
            log.warning(
                "%s brings code of its own (auto_map in its config.json), which is not run: it is trained as the %s of "
                "transformers", options.path, type(model.network).__name__,
            )  # fmt: skip
        attention = options.attention if isinstance(options, LanguageModelOptions) else "auto"
        plain = attention == "auto" and options.quantization is None and options.float32_matmul_precision == "highest"
        best = None if plain and compute == torch.float32 else model.best()
        if only_samples and options.lora is None:
            rest_frozen(model.network, compute)
        if not shared:
            _quantize(model, options)
            model.place()
        if attention != "auto":
            choose_attention(model.network, attention, compute=compute)
            model.own_attention = False
        model.try_out(best)
    if options.gradient_checkpointing:
        _checkpoint(model, options.gradient_checkpointing)
    if options.compile:
        from burnish.types.batch import to_device

        model.forwards.upload = to_device  # the compiler knows no others than plain tensors
        for layer in model.layers(model.network):
            layer.compile()
    return model


def positions_of(options: CommonModelOptions) -> Positions | None:
    """Tokens that a model was trained to read at once, by config.json alone; None where transformers can't tell.

    Raises:
        UserError: it can't be read.
    """
    from burnish.language.model.universal import positions_within

    config = _config(options)
    return None if config is None else positions_within(config.get_text_config())


def _config(options: CommonModelOptions) -> Any:
    """The configuration, by config.json alone; None where transformers can't tell.

    Raises:
        UserError: it can't be read.
    """
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    path, config = read_config(options)
    if config.get("model_type") not in CONFIG_MAPPING:
        return None
    with understood(f"model.path is {options.path}, whose config.json can't be read"):
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def check_split(options: CommonModelOptions, size: int) -> None:
    """Refuse a decoder whose sequences ranks can't split, by config.json alone.

    Args:
        options: of the model.
        size: ranks that share a sequence.

    Raises:
        UserError: it has fewer heads, or layers that are no attention.
    """
    from burnish.language.model.capabilities import PLANNED

    config = _config(options)
    text = None if config is None else config.get_text_config()
    heads, kinds = getattr(text, "num_attention_heads", None), set(getattr(text, "layer_types", None) or ())
    said = f"sharding.context_parallel is {size}, but {options.path} has"
    if isinstance(heads, int) and heads < size:
        raise UserError(f"{said} {heads} attention heads, of which every rank needs one; give {heads} or less")
    if odd := sorted(kinds - PLANNED):
        raise UserError(f"{said} layers of {', '.join(odd)}, which need all tokens on one rank; set it to 1")


def load_outline(options: CommonModelOptions) -> LanguageModel:
    """A model by its configuration files alone: names and shapes without memory, and what reads prompts.

    Raises:
        UserError: it can't be loaded.
    """
    import torch
    from accelerate import init_empty_weights

    path, _ = read_config(options)
    compute = getattr(torch, options.dtype)
    with understood(f"model.path is {options.path}, whose processor can't be loaded"):
        with without_weights(), init_empty_weights():
            model: LanguageModel = class_of(options).load(path, dtype=compute, compute=compute, device="cpu")
        model.network.tie_weights()  # as files do
        return model


def _quantize(model: LanguageModel, options: CommonModelOptions) -> None:
    """Store the decoder's layers in fewer bits, if that is wanted. A vision tower is small, and reads its own type."""
    fewer = options.quantization
    if fewer is None or fewer.weights is None:
        return
    model.refuse_non_finite()
    with quietly():
        quantize(
            model.network.get_decoder(), fewer.weights,
            compute=model.compute, device=model.device, exclude=fewer.exclude, in_full=_in_full(options),
        )  # fmt: skip


def match_layers(model: LanguageModel, options: CommonModelOptions) -> None:
    """Refuse options about layers or blocks that the network doesn't have; weights need no values for this.

    Raises:
        UserError: naming the option.
    """
    fewer = options.quantization
    if fewer is not None and fewer.weights is not None:
        layers = model.network.get_decoder()
        layers_to_quantize(layers, fewer.weights, exclude=fewer.exclude, in_full=_in_full(options))
    if options.gradient_checkpointing:
        _checkpoint(model, options.gradient_checkpointing)
    if isinstance(options, LanguageModelOptions) and options.attention != "auto":
        for name in (options.attention, REFERENCE):
            with attention_errors(options.attention):
                _attend_by(model.network, name)


def _in_full(options: CommonModelOptions) -> list[str]:
    """Modules that are trained in full, beside adapters."""
    return options.lora.modules_to_save if isinstance(options.lora, LanguageLoraOptions) else []


def _checkpoint(model: Any, blocks: bool | int) -> None:
    """Recompute the activations of each layer in the backward pass, or of the first ones of the decoder.

    transformers does so only for layers in training mode. Their submodules stay in evaluation mode, where dropout is
    off.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    network = model.network
    recomputed = [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer)]
    if not recomputed or not network.supports_gradient_checkpointing:
        raise UserError(
            f"model.gradient_checkpointing is {blocks}, but transformers computes no layers of "
            f"{type(network).__name__} again; leave it out, and lower trainer.micro_batch_tokens to save memory"
        )
    layers = model.layers(network)
    kept = set(layers[block_count(blocks, len(layers)) :])
    # the older name warns where there is a newer one
    getattr(network, "activation_checkpointing_enable", network.gradient_checkpointing_enable)(
        {"use_reentrant": False, "context_fn": AsInForward(network)}
    )
    for layer in recomputed:
        if layer not in kept:
            layer.training = True


REFERENCE = "sdpa"
TOLERATED = {"torch.float32": 1e-3, "torch.bfloat16": 5e-2}  # largest difference of states after all layers, relative
TOKENS = 40  # of what is compared


def choose_attention(network: Any, name: str, *, compute: torch.dtype) -> None:
    """Have a model attend by one of transformers' implementations, after comparing it with PyTorch's own.

    Args:
        network: is changed.
        name: of the implementation.
        compute: precision of the forward pass.

    Raises:
        UserError: it is not installed, this model or device doesn't support it, or it computes something else.
    """
    device = next(network.parameters()).device.type
    compare_attention(
        name, REFERENCE, lambda one: _states(network, one, compute, device), TOLERATED[str(compute)], compute
    )


def _attend_by(network: Any, name: str) -> None:
    network.set_attn_implementation(name)
    if (own := network.get_decoder().config._attn_implementation) != name:
        raise ValueError(f"{type(network).__name__} attends by {own}, and has no choice")


def _states(network: Any, name: str, compute: torch.dtype, device: str) -> list[Tensor]:
    """The decoder's states for some tokens under an implementation, and their gradient to the embeddings."""
    import torch

    _attend_by(network, name)
    known = network.get_input_embeddings().weight
    tokens = torch.arange(TOKENS, device=known.device) * 7 % len(known)
    inputs = torch.nn.functional.embedding(tokens, known)[None].detach().requires_grad_()
    with torch.enable_grad(), torch.autocast(device, compute, enabled=compute != torch.float32):
        mask = torch.ones(1, TOKENS, dtype=torch.long, device=known.device)
        out = network.get_decoder()(inputs_embeds=inputs, attention_mask=mask, use_cache=False).last_hidden_state
    # states have a fixed norm, so that their squares would have no gradient
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return [out.detach().float(), torch.autograd.grad(out, inputs, slope)[0].float()]
