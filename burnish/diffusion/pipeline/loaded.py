"""A pipeline of diffusers: loading it, parts in CPU memory, and writing what was trained as diffusers reads it."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import diffusers
import torch
from torch import Tensor, nn

from burnish.diffusion.pipeline.adapters import FILE, check_adapter
from burnish.diffusion.pipeline.loading import LENGTH, classes_of
from burnish.diffusion.pipeline.networks import (
    PixelSpace,
    by_name,
    check_attention_and_compile,
    choose_attention,
    compile_blocks,
    denoisers,
    leave_out_unread_text,
    recompute,
    together,
    writers,
)
from burnish.models.adapters import WEIGHTS, adapter_folder
from burnish.models.lora import adapter_state, merging_rounds, save_for_peft
from burnish.models.modular import pipeline_class
from burnish.models.placing import load_mapped, place, place_buffers, resting
from burnish.models.processors import processors_without_torchvision
from burnish.models.quantization import quantize
from burnish.utils.errors import UserError, first_line
from burnish.utils.json_text import read_object
from burnish.utils.weights import Agreed, file_precision, quietly, refuse_non_finite

if TYPE_CHECKING:
    from burnish.diffusion.options import ModelOptions, RolloutOptions
    from burnish.options.model import LoraOptions


class LoadedPipeline:
    """Base of families: the parts of a pipeline, frozen, and the networks that are trained."""

    own: ClassVar[Any] = None  # a class of pipelines of the user's, in place of the one in model_index.json
    away: Sequence[PutAway] = ()  # frozen parts that rest in CPU memory
    bases: Sequence[PutAway] = ()  # networks with adapters, all but which rests there while prompts are encoded

    def __init__(self, pipeline: Any, options: ModelOptions, rollout: RolloutOptions, *, compute: torch.dtype) -> None:
        self.pipeline, self.rollout, self.compute = pipeline, rollout, compute
        self.class_name = type(pipeline).__name__
        self.names = denoisers(pipeline.components, options.networks)
        self.writer = next(iter(writers(pipeline.components, self.names)), "")  # of tokens, if it is trained
        self.denoises = self.names != (self.writer,)  # whether a network is trained that predicts velocities
        for name in self.names:
            if loaded := getattr(getattr(pipeline, name), "peft_config", None):
                raise UserError(
                    f"{name} has adapters already ({', '.join(loaded)}), and would be trained beside them; merge them "
                    "into its weights first, by fuse_lora and unload_lora_weights"
                )
            leave_out_unread_text(getattr(pipeline, name))
        self.network: nn.Module = together({name: getattr(pipeline, name) for name in self.names})
        self.device = next(self.network.parameters()).device  # where it computes; ``load`` places it there afterwards
        self.path: Path | None = None  # directory that it was read from
        fewer = None if options.quantization is None else options.quantization.weights
        self._bases_rest = options.offload and options.lora is not None and fewer in (None, "fp8_cast")

    @classmethod
    def load(
        cls,
        path: Path,
        index: dict[str, Any],
        options: ModelOptions,
        rollout: RolloutOptions,
        *,
        dtype: torch.dtype,
        compute: torch.dtype,
        device: str,
        given: Mapping[str, nn.Module],
    ) -> Self:
        """Read a pipeline from disk.

        Args:
            path: directory with model_index.json.
            index: that file's content.
            options: of the model.
            rollout: how it draws.
            dtype: precision of the weights of the networks that are trained; for the VAE's see ``vae_precision``.
            compute: precision of the networks' forward passes, and of the weights of all other parts.
            device: of all parts. The networks that are trained are not there yet: see ``place``.
            given: frozen parts of another model in place of its own, by their names.

        Raises:
            UserError: weights are missing, wrong or not finite, or the model can't be trained as this family.
        """
        absent: dict[str, Any] = {
            name: PixelSpace() if name == "vae" else None
            for name, kind in index.items()
            if kind in (None, [None, None])
        }
        absent |= given
        kinds = {name: kind for name, kind in classes_of(index).items() if name not in absent}
        networks = {name: kind for name, kind in kinds.items() if issubclass(kind, nn.Module)}
        if not networks:
            raise UserError(
                f"model.path is {options.path}, whose model_index.json names no network of a {index['_class_name']}, "
                "so that it can't be loaded; download the model again"
            )
        trained = denoisers(networks, options.networks)
        vae = vae_precision(networks["vae"], path / "vae", compute) if "vae" in networks else torch.float32
        precision = {"default": compute, "vae": vae} | dict.fromkeys(trained, dtype)
        with quietly():
            kind = cls.own or pipeline_class(index["_class_name"], index.get("_blocks_class_name"))
            parts = {
                name: _loaded(network, path / name, dtype=precision.get(name, compute))
                for name, network in networks.items()
            }
            parts |= processors_without_torchvision(path, index)
            pipeline = kind.from_pretrained(path, dtype=precision, local_files_only=True, **absent, **parts)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.register_to_config(**{key: value for key, value in index.items() if key == LENGTH})
        away = _place_frozen(pipeline, {*trained, *given}, path, options, device)
        if options.vae_tiling:
            tile(pipeline)
        model = cls(pipeline, options, rollout, compute=compute)
        model.device, model.path, model.away = torch.empty(0, device=device).device, path, away
        for part in away:  # experts are as large as what is trained: everything leaves for them, and they for anything
            part.instead_of = [other for other in away if {part.part, other.part} & {*model.experts.values()}]
        for name, network in model.networks.items():
            # parts leave the device whenever what is trained runs
            if away:
                network.register_forward_pre_hook(lambda *_: model.leave(decoders=torch.is_grad_enabled()))
            if name == model.writer:
                continue
            check_attention_and_compile(network, options)
            if options.attention != "auto":
                choose_attention(network, options.attention, compute=compute, device=device)
            if options.compile:
                compile_blocks(network)
        return model

    def refuse_sizes(self, sizes: Mapping[str, tuple[int, int]]) -> None:
        """Refuse heights and widths, by the section that has them, that the pipeline's own check of its arguments does.

        Raises:
            UserError: with the first such size.
        """
        check = getattr(self.pipeline, "check_inputs", lambda: None)
        taken = inspect.signature(inspect.unwrap(type(self.pipeline).__call__)).parameters
        usual = {name: one.default for name, one in taken.items()} | {"prompt": ""}
        for section, (height, width) in sizes.items():
            given = usual | {"height": height, "width": width}
            try:
                check(**{name: given.get(name) for name in inspect.signature(check).parameters})
            except Exception as error:  # or what prompts bring is missing here
                if isinstance(error, ValueError) and "height" in str(error):
                    raise UserError(
                        f"{section}.height is {height} and width {width}, which a {self.class_name} refuses: "
                        f"{first_line(error)}"
                    ) from error

    def place(self) -> None:
        """Move the networks that are trained to the device, in the precision that they rest in."""
        if self._bases_rest:
            self.bases = [PutAway(network, self.device, called_whole=True) for network in self.networks.values()]
            for part in self.away:
                part.instead_of += self.bases if part.part in self.experts.values() else []
            for base in self.bases:
                base.bring()
        place(self.network, self.device)
        self.refuse_non_finite()

    def leave(self, *, decoders: bool) -> None:
        """Have frozen parts leave the device, and also ``decoders``, which samples end with."""
        for part in self.away:
            if decoders or not hasattr(part.part, "decode"):
                part.leave()

    def refuse_non_finite(self, agreed: Agreed = lambda found: found) -> None:
        """Refuse NaN or infinite weights of the networks that are trained; see ``burnish.utils.weights``."""
        for name, network in self.networks.items():
            refuse_non_finite(network, (self.path or Path()) / name, agreed)

    @property
    def text_encoders(self) -> dict[str, nn.Module]:
        """Its text encoders, by the names of the pipeline's parts."""
        return {
            name: part for name, part in self.pipeline.components.items()
            if name.startswith("text_encoder") and part is not None
        }  # fmt: skip

    @property
    def networks(self) -> dict[str, Any]:
        """The networks that are trained, by the names of the pipeline's parts."""
        return dict(by_name(self.network, self.names))

    @property
    def experts(self) -> dict[str, nn.Module]:
        """Networks that predict velocities, too, and are not trained, by the names of the pipeline's parts."""
        every = denoisers(self.pipeline.components, None)
        return {name: getattr(self.pipeline, name) for name in every if name not in self.names}

    def recompute_activations(self, blocks: bool | int = True) -> None:
        """Activation checkpointing in the networks' blocks, and in the VAE's decoder if it can."""
        for name, network in self.networks.items():
            if name != self.writer:  # its class would do without the cache that tokens are read by
                recompute(network, blocks)
        vae: Any = getattr(self.pipeline, "vae", None)
        if getattr(vae, "_supports_gradient_checkpointing", False):
            vae.enable_gradient_checkpointing()

    def _parts(self) -> dict[str, Any]:
        """The pipeline's own parts; None for those that it lacks."""
        return {name: None if isinstance(part, PixelSpace) else part for name, part in self.pipeline.components.items()}

    def absent_parts(self) -> list[str]:
        """Names of the pipeline's parts that are missing."""
        optional = type(self.pipeline)._optional_components
        return [name for name, part in self._parts().items() if part is None and name not in optional]

    def save_lora(self, folder: Path, adapter: str) -> None:
        """Write an adapter as diffusers reads it: in one file, and one more for each network that this doesn't hold."""
        for name, network in self.networks.items():
            if self._saver_takes(name, network):
                weights, metadata = adapter_state(network, adapter)
                more: dict[str, Any] = {f"{name}_lora_layers": weights, f"{name}_lora_adapter_metadata": metadata}
                type(self.pipeline).save_lora_weights(folder, **more)
            elif hasattr(network, "save_lora_adapter"):
                network.save_lora_adapter(folder / name, adapter_name=adapter)
            else:
                save_for_peft(network, folder / name, adapter)

    def lora_lines(self, folder: Path) -> list[str]:
        """Code that loads an adapter which ``save_lora`` wrote into ``pipe``."""
        return [self._loading_line(folder, name, network) for name, network in self.networks.items()]

    def _loading_line(self, folder: Path, name: str, network: nn.Module) -> str:
        if self._saver_takes(name, network):
            return f'pipe.load_lora_weights("{folder}")'
        if hasattr(network, "save_lora_adapter"):
            return f'pipe.{name}.load_lora_adapter("{folder / name}", prefix=None, weight_name="{FILE}")'
        return f'from peft import PeftModel; PeftModel.from_pretrained(pipe.{name}, "{folder / name}")'

    def _saver_takes(self, name: str, network: nn.Module) -> bool:
        saver = (
            getattr(type(self.pipeline), "save_lora_weights", None) if hasattr(network, "load_lora_adapter") else None
        )
        return saver is not None and f"{name}_lora_adapter_metadata" in inspect.signature(saver).parameters

    def adapter_weights(self, options: LoraOptions) -> dict[str, Tensor]:
        """The weights of the adapter in ``options.path`` by their names in the network.

        Raises:
            UserError: it doesn't fit the options or the network.
        """
        given = check_adapter(adapter_folder(options, (FILE,)), options, self.names).weights
        mark = "" if len(self.names) > 1 else f"{self.names[0]}."
        return {name.removeprefix(mark): value for name, value in given.items()}

    def fold_lora(self, folder: Path) -> None:
        """Merge an adapter, as ``save_lora`` or peft writes it, into the networks' weights permanently."""
        from peft import PeftModel

        wrapped: dict[str, Any] = {}
        with quietly():
            for name, network in self.networks.items():
                if (folder / name / FILE).is_file():
                    network.load_lora_adapter(folder / name, prefix=None, weight_name=FILE)
                for place in (folder / name, folder):
                    if (place / WEIGHTS).is_file():
                        wrapped[name] = PeftModel.from_pretrained(network, place)
            if (folder / FILE).is_file() or not (wrapped or any((folder / name).is_dir() for name in self.names)):
                self.pipeline.load_lora_weights(folder)
            if not merging_rounds(self.network):
                for name, network in self.networks.items():
                    if name in wrapped:
                        wrapped[name].merge_and_unload()
                    else:
                        network.fuse_lora()
                        network.unload_lora()
        self.network.requires_grad_(False)

    def check_export(self, name: str, weights: Collection[str]) -> Any:
        """A network of its class and configuration, without values, for these weights.

        Raises:
            UserError: it lacks one of them.
        """
        trained, writes = self.networks[name], name == self.writer
        kind = type(trained)
        with torch.device("meta"):
            plain = kind(trained.config) if writes else kind.from_config(dict(trained.config))
        if added := sorted(set(weights) - plain.state_dict().keys()):
            raise UserError(
                f"a {self.class_name} adds weights to its {name} ({added[0]}), which a {kind.__name__} doesn't read "
                "again from a folder: train an adapter (model.lora) and export that (--format lora), or name a class "
                "of your package that has them in model_index.json"
            )
        if writes:
            plain.generation_config = trained.generation_config
        else:
            plain.register_to_config(**{k: v for k, v in trained.config.items() if not k.startswith("_")})
        return plain

    def save_pipeline(self, folder: Path, weights: dict[str, Tensor]) -> None:
        """Write the full pipeline with other weights of the networks, as diffusers' ``from_pretrained`` reads it."""
        plain = {}
        for name in self.names:
            mark = f"{name}." if len(self.names) > 1 else ""
            own = {key.removeprefix(mark): value for key, value in weights.items() if key.startswith(mark)}
            plain[name] = self.check_export(name, own)
            plain[name].load_state_dict(own, assign=True)
        config, own = self.pipeline.config, self.pipeline.components
        numbers = {key: value for key, value in config.items() if not key.startswith("_") and key not in own}
        with quietly():
            pipeline = type(self.pipeline)(**(self._parts() | plain | numbers))
            pipeline.register_to_config(**{key: value for key, value in config.items() if key == LENGTH})
            pipeline.save_pretrained(folder)
        for name, part in self._parts().items():
            if self.path is None or isinstance(part, torch.nn.Module):
                continue
            for file in (folder / name).glob("*"):  # tokenizers keep what a call has set: the model's own files
                if (given := self.path / name / file.name).is_file():
                    shutil.copyfile(given, file)


def _loaded(kind: Any, folder: Path, *, dtype: torch.dtype) -> Any:
    """A network of a folder; or several in one, which lie in NAME, NAME_1 and so on (MultiControlNetModel)."""
    if hasattr(kind, "load_config") or not kind.__module__.startswith("diffusers."):
        return load_mapped(kind, folder, dtype=dtype)
    own, more = read_object(folder / "config.json").get("_class_name"), folder.parent.glob(f"{folder.name}_[0-9]")
    return kind([load_mapped(getattr(diffusers, str(own)), one, dtype=dtype) for one in (folder, *sorted(more))])


def _place_frozen(
    pipeline: Any, others: Collection[str], path: Path, options: ModelOptions, device: str
) -> list[PutAway]:
    """Place all parts but the ``others``, which are trained or another model's; returns those in CPU memory."""
    away: list[PutAway] = []
    fewer = None if options.quantization is None else options.quantization.text_encoders
    for name, part in pipeline.components.items():
        if isinstance(part, torch.nn.Module):
            part.requires_grad_(False).eval()
            # some of diffusers read it, with gradients on, without having set it
            part.__dict__.setdefault("gradient_checkpointing", False)
            if name in others:
                continue
            refuse_non_finite(part, path / name)
            if fewer is not None and name.startswith("text_encoder"):
                own = resting(part.get_input_embeddings().weight)  # type: ignore[operator]
                where = "cpu" if options.offload else device
                with quietly():
                    quantize(part, fewer, compute=own, device=where, option="model.quantization.text_encoders")
            if options.offload:
                away.append(PutAway(part, torch.empty(0, device=device).device))
            else:
                place(part, device)
    return away


def vae_precision(kind: type, folder: Path, compute: torch.dtype) -> torch.dtype:
    """float32; or bfloat16 where networks compute in it, a VAE is published in it, and its class asks for no more."""
    upcast = inspect.signature(kind).parameters.get("force_upcast")
    config = read_object(folder / "config.json") if upcast is not None else {}
    in_full = upcast is not None and config.get("force_upcast", upcast.default)
    halved = compute == torch.bfloat16 and not in_full and file_precision(folder) == "BF16"
    return torch.bfloat16 if halved else torch.float32


def tile(pipeline: Any) -> None:
    """Have the VAE decode in tiles.

    Raises:
        UserError: it can't.
    """
    try:
        pipeline.vae.enable_tiling()
    except (AttributeError, NotImplementedError):
        kind = type(getattr(pipeline, "vae", None)).__name__
        raise UserError(
            f"model.vae_tiling is true, but a {type(pipeline).__name__} with {kind} as VAE can't decode in tiles; "
            "remove it"
        ) from None


class PutAway:
    """A part whose weights are copied to the device when one of its modules runs, and dropped there again.

    Nothing is copied back, as its weights never change. Buffers stay on the device: pipelines read some directly.
    """

    def __init__(self, part: nn.Module, device: torch.device, *, called_whole: bool = False) -> None:
        """Args: ``part`` is frozen, but for adapters that it may get; its weights need not be placed yet. One that is
        ``called_whole`` runs by its own forward pass alone, and whoever calls it knows its device."""
        self.part, self.device = part, device
        place(part, "cpu")
        for owner in part.modules():
            place_buffers(owner, device)
        self._resting = [
            (owner, name, weight) for owner in part.modules() for name, weight in owner._parameters.items()
            if weight is not None
        ]  # fmt: skip
        self.is_away = True
        self.instead_of: list[PutAway] = []  # parts that leave when it comes
        if called_whole:
            part.register_forward_pre_hook(lambda *_: self.bring())
            return
        kind = type(part)  # pipelines send inputs to where a part says that it is
        part.__class__ = type(kind.__name__, (kind,), {"device": device, "__module__": kind.__module__})
        # some are called by their inner modules alone, as a VAE is by its decoder
        for owner in {owner for owner, _, _ in self._resting}:
            owner.register_forward_pre_hook(lambda module, args: self.bring())

    def bring(self) -> None:
        """Copy the weights to the device, unless they are there."""
        if self.is_away:
            for other in self.instead_of:  # itself is away
                other.leave()
            place(self.part, self.device)
            self.is_away = False

    def leave(self) -> None:
        """Drop the copies on the device."""
        if not self.is_away:
            for owner, name, weight in self._resting:
                owner._parameters[name] = weight
            self.is_away = True
