"""Context parallelism of generators by diffusers' hooks: each rank of a group has a part of every token sequence.

Between layers of attention a rank holds all features of its own tokens, and within them all tokens of its own heads
(Ulysses, Jacobs et al. 2023, arXiv:2309.14509). The last layer's outputs are gathered, so that all ranks of a group
return the same tensor. Its gradient reaches a rank for its own tokens alone: the gradients of weights are those of a
single rank once they are summed over the group.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.diffusion.pipeline.loading import parts_of, standard_side
from burnish.diffusion.pipeline.networks import Networks
from burnish.utils.errors import UserError
from burnish.utils.json_text import read_object

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from burnish.diffusion.options import RolloutOptions

OPTION = "sharding.context_parallel"
# pipelines whose gradients tests compare with those of one rank, with the class of their network. A sum of gradients is
# wrong where a network gathers in every block (Helios), or has a second stream that is not split (LTX-2); diffusers has
# no backward pass for sequences of unlike length that attend to each other (LTX-Video); and where texts are as long as
# their prompts (Qwen-Image) they don't divide
SHOWN = {
    "FluxPipeline": "FluxTransformer2DModel",
    "WanPipeline": "WanTransformer3DModel",
}
LONGEST_TEXT = 512  # tokens that FLUX pads texts to by default


def check_contexts(path: Path, index: dict[str, Any], size: int, attention: str, *sizes: RolloutOptions) -> None:
    """Refuse a network that ranks can't share the sequences of, by its configuration files alone.

    Args:
        path: of the pipeline.
        index: its model_index.json.
        size: ranks of a group.
        attention: the attention backend.
        sizes: how it draws, of every size.

    Raises:
        UserError: naming what doesn't fit.
    """
    kind = str(index.get("_class_name"))
    networks = [name for name in parts_of(index) if index[name][1] == SHOWN.get(kind)]
    if not networks:
        raise UserError(
            f"{OPTION} is {size}, but gradients of a {kind} are not shown to be right with it, only those of "
            f"{', '.join(SHOWN)}; set {OPTION}=1"
        )
    for name in networks:
        heads = int(read_object(path / name / "config.json").get("num_attention_heads", 0))
        if heads % size:
            raise UserError(
                f"{OPTION} is {size}, but {name} has {heads} attention heads, which ranks share out; give a divisor"
            )
    for what, count in (one for rollout in sizes for one in _sequences(path, index, rollout, networks[0])):
        if count % size:
            raise UserError(f"{OPTION} is {size}, which does not divide {what}: {count} tokens; give a divisor")
    if attention not in ("auto", "native"):
        from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

        if not _AttentionBackendRegistry._is_context_parallel_available(AttentionBackendName(attention)):
            raise UserError(
                f"model.attention is {attention}, which diffusers has no context parallelism for ({OPTION} is {size}); "
                "leave one of them out"
            )


def _sequences(path: Path, index: dict[str, Any], rollout: RolloutOptions, network: str) -> Iterator[tuple[str, int]]:
    """What is split, each with its length in tokens."""
    config = read_object(path / network / "config.json")
    if SHOWN[str(index["_class_name"])] == "FluxTransformer2DModel":
        length = rollout.max_sequence_length
        yield "texts (rollout.max_sequence_length)", LONGEST_TEXT if length is None else length
        standard, scale = standard_side(path), standard_side(path) // int(config.get("sample_size") or 128)
        height, width = rollout.height or standard, rollout.width or standard
        yield f"pictures of {height} x {width}", (height // scale // 2) * (width // scale // 2)
        return
    import diffusers

    takes = inspect.signature(inspect.unwrap(getattr(diffusers, str(index["_class_name"])).__call__)).parameters
    named = {name: getattr(rollout, name) or takes[name].default for name in ("height", "width", "num_frames")}
    vae, (deep, high, wide) = read_object(path / "vae" / "config.json"), config["patch_size"]
    squeezed, faster = int(vae.get("scale_factor_spatial", 8)), int(vae.get("scale_factor_temporal", 4))
    frames = ((named["num_frames"] - 1) // faster + 1) // deep
    rows, columns = named["height"] // squeezed // high, named["width"] // squeezed // wide
    yield f"clips of {named['num_frames']} frames of {named['height']} x {named['width']}", frames * rows * columns


def split_sequences(network: nn.Module, group: Any, device: str, compute: torch.dtype) -> None:
    """Have the ranks of a group run a network together: to be called once, when its layers are what they will be.

    ``enable_parallelism`` of diffusers would do the same, but divides by the number of accelerators, and makes process
    groups with a timeout of their own.

    Args:
        network: or several, in one module.
        group: their process group.
        device: type of the networks' device.
        compute: precision of their forward passes.
    """
    from diffusers.hooks.context_parallel import apply_context_parallel
    from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig
    from torch.distributed.device_mesh import DeviceMesh

    _attend_in(compute, device)
    mesh: Any = DeviceMesh.from_group(group, device, mesh_dim_names=("ulysses",))
    config: Any = ContextParallelConfig(ulysses_degree=group.size())
    config._rank, config._world_size = group.rank(), group.size()
    config._flattened_mesh = config._ulysses_mesh = mesh
    for one in network.values() if isinstance(network, Networks) else [network]:
        own: Any = one
        for module in own.modules():
            processor: Any = getattr(module, "processor", None)
            if hasattr(processor, "_parallel_config"):
                processor._parallel_config = ParallelConfig(context_parallel_config=config)
        apply_context_parallel(own, config, own._cp_plan)
        own.register_forward_pre_hook(partial(_check_lengths, group.size()), with_kwargs=True)


def _attend_in(compute: torch.dtype, device: str) -> None:
    """Have diffusers' attention of context groups convert its inputs to the precision of the forward pass.

    Attention in one process is given them by autocast, which no backward pass runs under: there the normalised queries
    and keys, of float32, would meet values of less, and until then they would be sent and kept in float32.
    """
    import torch
    from diffusers.models import attention_dispatch
    from torch.amp.autocast_mode import custom_fwd

    own = attention_dispatch.TemplatedUlyssesAttention
    if compute != torch.float32 and own.__name__ != "InPrecision":
        forward = staticmethod(custom_fwd(own.forward, device_type=device, cast_inputs=compute))
        attention_dispatch.TemplatedUlyssesAttention = type("InPrecision", (own,), {"forward": forward})


def _check_lengths(size: int, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse inputs that can't be split evenly, such as data of other sizes than the run's."""
    given = inspect.signature(network.forward).bind_partial(*args, **kwargs).arguments
    states: Tensor = given["hidden_states"]
    if states.ndim == 5:
        deep, high, wide = network.config.patch_size
        frames, rows, columns = states.shape[2:]
        counts = [(frames // deep) * (rows // high) * (columns // wide)]
    else:
        counts = [states.shape[1], given["encoder_hidden_states"].shape[1]]
    if odd := [count for count in counts if count % size]:
        raise UserError(
            f"{OPTION} is {size}, which does not divide a sequence of {odd[0]} tokens; give a divisor, or data of "
            "other sizes"
        )
