"""Operations that a forward and a backward pass of a generator launch, beside those of diffusers alone.

Every operation that computes is a kernel of a GPU, and views are none. The network of each class is called as the
pipeline calls it, in bfloat16: by diffusers, with peft's adapters in that precision, and by Burnish, whose adapters are
float32. Counts depend on no machine.

    python -m benchmarks.kernels
"""

from __future__ import annotations

import argparse
import inspect
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from burnish.diffusion.algorithms.base import Needs
from burnish.diffusion.engine import FlowEngine, FlowJob
from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.forwards import Call, Forwards, Whole
from burnish.diffusion.pipeline.loading import load_model
from burnish.diffusion.roles import FlowRoles
from burnish.models.lora import attach
from burnish.models.tiny import describe
from burnish.models.tiny.build import write
from burnish.options.model import LoraOptions
from burnish.plan.made_up import made_up_prompts
from tools.tiny_calls import load

CLASSES = ("sd3", "flux", "qwen-image", "qwen-image-edit", "sdxl", "wan2.1", "wan2.2", "ltx", "z-image")
BLOCKS = ("num_layers", "n_layers", "num_single_layers", "n_refiner_layers")  # in a transformer's configuration
NO_KERNELS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")


class Kernels(TorchDispatchMode):
    """Counts operations that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        views = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        if not views and func.overloadpacket.__name__ not in NO_KERNELS:
            self.counts[func.overloadpacket.__name__] += 1
        return found


@contextmanager
def captured(networks: Sequence[str]) -> Iterator[list[Call]]:
    """The calls of networks in this context."""
    calls: list[Call] = []
    original = Forwards.__call__

    def call(self: Forwards, function: Callable[..., Any], given: Call) -> Any:
        if given.network in networks:
            calls.append(given)
        return original(self, function, given)

    Forwards.__call__ = call  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        Forwards.__call__ = original  # type: ignore[method-assign]


def counted(run: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """Of a forward, and of the backward pass after it if there is one."""
    with Kernels() as forward:
        output = run()
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    with Kernels() as backward:
        if tensors:
            tensors[0].float().sum().backward()
    return forward.counts, backward.counts


def work(name: str, layers: int, folder: Path, *, lora: bool) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """Counts of one forward by diffusers and by Burnish."""
    tiny = describe(name)
    network = "unet" if "unet" in tiny.parts or name == "sdxl" else "transformer"
    path = folder / f"{name}-{layers}"
    if not path.exists():
        write(tiny, path, 0)
        takes = inspect.signature(type(load(path).components[network])).parameters
        deeper = {key: layers for key in BLOCKS if key in takes}
        shutil.rmtree(path)
        write(replace(tiny, parts={**tiny.parts, network: {**tiny.parts.get(network, {}), **deeper}}), path, 0)
    rollout = RolloutOptions(
        num_inference_steps=3, height=tiny.height, width=tiny.width, num_frames=tiny.num_frames, batch_size=4,
        call=dict(tiny.call),
    )  # fmt: skip
    options = LoraOptions(rank=4)
    model: Any = load_model(ModelOptions(path=str(path), dtype="bfloat16", lora=options), rollout)
    adapted = options if lora else None
    roles = FlowRoles(model, Needs(), adapted, guidance=1.0, micro_batch_size=4, on_policy=True, seed=0)
    engine = FlowEngine(roles, rollout, seed=0)
    job = FlowJob.groups(list(made_up_prompts(1, (64, 64) if "edit" in name else None)), 2, purpose="rollout", update=1)
    if not lora:
        model.network.requires_grad_(False)
    _, trace, _ = next(engine.sample(job))
    x, conditioning = trace.latents, trace.conditioning
    time = trace.schedule[torch.tensor([1, 1])]
    with captured(model.names) as calls, torch.no_grad():
        roles.policy(x, time, conditioning)
    found, call = {}, calls[-1]
    ours = model.networks[call.network]
    found["burnish"] = counted(lambda: model.forwards(ours, call))
    other: Any = load_model(ModelOptions(path=str(path), dtype="bfloat16", lora=options), rollout)
    plain = other.networks[call.network]
    if lora:
        targets = list({key.rsplit(".lora_A", 1)[0] for key, _ in ours.named_modules() if key.endswith("lora_A")})
        attach(plain, LoraConfig(r=4, lora_alpha=8, target_modules=targets), "policy")
        for key, weight in plain.named_parameters():
            weight.data = weight.data.to(torch.bfloat16) if "lora_" in key else weight.data
    arguments = tree_map_only(Whole, lambda whole: whole.value, call.arguments)
    low = tree_map(_low, {key: value for key, value in arguments.items() if key != "timestep"})
    found["diffusers"] = counted(lambda: plain(**arguments | low))
    return found


def _low(value: Any) -> Any:
    return value.to(torch.bfloat16) if isinstance(value, Tensor) and value.dtype == torch.float32 else value


def main() -> None:
    """Count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", nargs="*", default=CLASSES, help="as burnish tiny knows them")
    parser.add_argument("--show", action="store_true", help="also by which operations they differ")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'class':12}{'blocks':>7}{'adapters':>10}{'forward':>18}{'':>7}{'backward':>18}")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.classes:
            for layers in (2, 8):
                for lora in (False, True):
                    found = work(name, layers, Path(folder), lora=lora)
                    cells = []
                    for own, other in zip(found["burnish"], found["diffusers"], strict=True):
                        ratio = f"{own.total() / other.total():.3f}" if other.total() else ""
                        cells.append(f"{own.total():6} /{other.total():6} {ratio:>6}")
                    print(f"{name:12}{layers:7}{'lora' if lora else 'merged':>10}   {'   '.join(cells)}", flush=True)
                    if arguments.show:
                        for own, other in zip(found["burnish"], found["diffusers"], strict=True):
                            print("   ", {key: n for key in own | other if (n := own[key] - other[key])})


if __name__ == "__main__":
    main()
