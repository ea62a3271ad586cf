"""Modular pipelines of diffusers, which are made of blocks, with what other pipelines have: their parts as arguments, a
call whose signature tells what it takes, and a scale of guidance among it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from inspect import Parameter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

from burnish.utils.hub import part_of
from burnish.utils.weights import quietly

OUTPUTS = {"videos": "frames"}  # what blocks and pipelines call the same
TEXT = "text_encoder"


def pipeline_class(named: str, blocks: str | None = None) -> Any:
    """The class of pipelines of that name; of modular ones, a subclass that is built, called and saved as others are.

    Args:
        named: in diffusers.
        blocks: class of a modular pipeline's blocks; in place of one that diffusers doesn't have, the pipeline's own.

    Returns:
        None if diffusers has no such class, or one without blocks of its own.
    """
    import diffusers

    kind: Any = getattr(diffusers, named, None)
    modular = isinstance(kind, type) and issubclass(kind, diffusers.ModularPipeline)
    if not modular:
        return kind
    known = bool(getattr(getattr(diffusers, str(blocks), None), "block_classes", None))  # as diffusers decides it
    usual = kind.default_blocks_name
    return None if usual is None else _of_blocks(kind, getattr(diffusers, str(blocks) if known else usual))


@cache
def _of_blocks(kind: Any, blocks: Any) -> Any:
    """A modular pipeline with blocks of a class."""
    from diffusers.guiders.guider_utils import BaseGuidance

    made = blocks()
    specs = {spec.name: spec for spec in made.expected_components}
    guiders = [name for name, spec in specs.items() if issubclass(spec.type_hint or object, BaseGuidance)]
    scales = {name: name.replace("guider", "guidance_scale") for name in guiders}
    given = {name: spec.type_hint for name, spec in specs.items() if spec.default_creation_method == "from_pretrained"}
    computed = {name for block in _blocks_in(made) for name in block.intermediate_output_names}
    inputs: dict[str, Any] = {
        one.name: Parameter.empty if one.required and one.name not in computed else one.default
        for one in made.inputs if one.name is not None
    } | dict.fromkeys(scales.values())  # fmt: skip

    def call(self: Any, **given: Any) -> Any:
        return self.draw(given)

    def signature(of: Mapping[str, Any], field: str) -> Any:
        return inspect.Signature([Parameter(name, Parameter.KEYWORD_ONLY, **{field: it}) for name, it in of.items()])

    vars(call)["__signature__"] = signature(inputs, "default")
    return type(kind.__name__, (OfBlocks, kind), {
        "__module__": kind.__module__, "__call__": call, "__signature__": signature(given, "annotation"),
        "blocks_class": blocks, "scales": scales, "parts": tuple(specs),
        "_optional_components": tuple(specs),  # what is there is loaded
    })  # fmt: skip


class OfBlocks:
    """Comes before the class of a modular pipeline."""

    blocks_class: ClassVar[Any]
    parts: ClassVar[Sequence[str]]  # all that its blocks may use
    scales: ClassVar[Mapping[str, str]]  # arguments of the call that set the scale of parts which guide, by these

    def __init__(self, **given: Any) -> None:
        """Args: parts, and values of its configuration."""
        own: Any = self
        blocks = self.blocks_class()
        for name, block in blocks.sub_blocks.items():
            if any(part.startswith(TEXT) for part in block.component_names):
                blocks.sub_blocks[name] = recorded = copy.copy(block)  # some belong to all pipelines of the class
                recorded.__class__ = _encoding(type(block))
        super().__init__(blocks)  # type: ignore[call-arg]
        parts = {name: given.pop(name) for name in own._component_specs if name in given}
        for name, part in parts.items():
            if getattr(part, "_diffusers_load_id", "null") != "null":  # of a folder, also where blocks make their own
                own._component_specs[name].default_creation_method = "from_pretrained"
        own.register_components(**parts)
        own.register_to_config(**given)

    @classmethod
    def from_pretrained(cls, path: Path, *, local_files_only: bool, dtype: Any = None, **given: Any) -> Any:
        """Of a folder whose index has been checked; ``given`` are parts that are loaded, all that have weights."""
        kind: Any = cls
        index, where = kind.load_config(path), {"pretrained_model_name_or_path": str(path), "revision": None}
        for name in cls.parts:
            if name in index and name not in given:
                spec = kind._dict_to_component_spec(name, {"type_hint": part_of(index[name])})
                given[name] = spec.load(**where, subfolder=name, local_files_only=local_files_only)
        configs = {one.name: index.get(one.name, one.default) for one in cls.blocks_class().expected_configs}
        return cls(**configs | given)

    def save_pretrained(self, folder: Path) -> None:
        """Write it as diffusers' ``from_pretrained`` and ``load_components`` read it."""
        own: Any = super()
        own.save_pretrained(str(folder), overwrite_modular_index=True)
        for name in self.parts:
            if name in own.config:  # what lies beside the index is found there, and nowhere else
                own.config[name][2]["pretrained_model_name_or_path"] = None
        own.save_config(folder)

    def set_progress_bar_config(self, **config: Any) -> None:
        """Of all blocks, also of those inside of others."""
        own: Any = self
        for block in _blocks_in(own._blocks):
            if hasattr(block, "set_progress_bar_config"):
                block.set_progress_bar_config(**config)

    def encode_blocks(self, run: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
        """What a block that encodes text adds to the state; a run knows it as an encoder by the name of this method."""
        return run()

    def draw(self, given: dict[str, Any]) -> SimpleNamespace:
        """What the last block makes, by the pipeline's own call; guidance of at most 1 is none."""
        own: Any = self
        scale = given.get("guidance_scale")
        for name, argument in self.scales.items():
            if (size := given.pop(argument, scale)) is not None:
                # off by the steps that it is for: some blocks (Wan's) fail where it is not enabled
                how = {"guidance_scale": size, "enabled": True} if size > 1 else {"start": 0.0, "stop": 0.0}
                with quietly():
                    setattr(own, name, getattr(own, name).new(**how))
        call: Any = super().__call__  # type: ignore[misc]
        state, names = call(**given), own._blocks.output_names
        return SimpleNamespace(**{OUTPUTS.get(name, name): state.get(name) for name in names})


def _encoding(kind: Any) -> Any:
    """A class of blocks whose instances are run by the pipeline's ``encode_blocks``."""

    def call(self: Any, pipeline: Any, state: Any) -> Any:
        def run() -> dict[str, Any]:
            before = dict(state.values)
            kind.__call__(self, pipeline, state)
            return {name: value for name, value in state.values.items() if value is not before.get(name)}

        kwargs = {one.name: one.kwargs_type for one in self.intermediate_outputs}
        for name, value in pipeline.encode_blocks(run).items():
            state.set(name, value, kwargs.get(name))
        return pipeline, state

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__})


def _blocks_in(block: Any) -> Iterator[Any]:
    """A block, and those inside of it."""
    yield block
    for one in block.sub_blocks.values():
        yield from _blocks_in(one)
