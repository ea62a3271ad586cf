"""Host memory that loading the networks of a run takes, on 1, 2 and 4 ranks of the CPU, from halved files.

Every rank is a process of its own. ``share`` is what it holds in the end, ``peak`` the most that it held on the way,
both above what the process had before; pages of the mapped files, which all processes of a machine have once and the
kernel takes back, are not counted.

    python -m benchmarks.loading --weights 200 --output loading.json
"""

import ctypes
import functools
import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from burnish.diffusion.algorithms.policy_gradient import FlowGRPO
from burnish.diffusion.options import ModelOptions, RolloutOptions
from burnish.diffusion.pipeline.loading import load_model
from burnish.diffusion.roles import FlowRoles
from burnish.options.cluster import ShardingOptions
from burnish.options.model import LoraOptions
from burnish.training.ranks import SINGLE_RANK, Ranks

MIB = 2**20
MMAP_THRESHOLD = -3  # of mallopt: blocks from this size on go back to the system at once


class Peak(TorchDispatchMode):
    """The most anonymous memory of this process, looked up at every operation on tensors, above that of the start."""

    def __init__(self) -> None:
        super().__init__()
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 1 << 16)
        gc.collect()
        self.start = self.most = anonymous()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.most = max(self.most, anonymous())
        return found

    def above(self) -> tuple[float, float]:
        """MiB now, and at the peak."""
        gc.collect()
        now = anonymous()
        return (now - self.start) / MIB, (max(self.most, now) - self.start) / MIB


def anonymous() -> int:
    """Bytes of this process that no file has."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:"))


def write_pipeline(folder: Path, width: int, layers: int) -> int:
    """Write a random Stable Diffusion 3 with one small encoder and without a VAE in bfloat16: its number of weights."""
    from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    torch.manual_seed(0)
    network = SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=3, out_channels=3, num_layers=layers, attention_head_dim=64,
        num_attention_heads=width // 64, joint_attention_dim=width, caption_projection_dim=width,
        pooled_projection_dim=width, pos_embed_max_size=16,
    )  # fmt: skip
    parts: dict[str, Any] = dict.fromkeys(
        ("vae", *(f"{kind}{n}" for kind in ("text_encoder", "tokenizer") for n in ("", "_2", "_3")))
    )
    encoder = CLIPTextConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1)
    parts["text_encoder"] = CLIPTextModelWithProjection(encoder).bfloat16()
    scheduler = FlowMatchEulerDiscreteScheduler()
    StableDiffusion3Pipeline(transformer=network.bfloat16(), scheduler=scheduler, **parts).save_pretrained(folder)
    return sum(weight.numel() for weight in network.parameters())


def load(folder: Path, ranks: Ranks, *, lora: bool) -> Any:
    """The networks of a run with a KL to a reference, in bfloat16."""
    options = LoraOptions(rank=8) if lora else None
    shared = ranks.size > 1
    given = ModelOptions(path=str(folder), lora=options, device="cpu", dtype="bfloat16")
    model = load_model(given, RolloutOptions(batch_size=96), shared=shared)
    algorithm = FlowGRPO(kl_coef=0.1)
    roles = FlowRoles(
        model, algorithm.needs(), options, guidance=1.0, micro_batch_size=1, on_policy=True, seed=0, shared=shared
    )
    if shared:
        roles.shard(ranks, ShardingOptions())
    return roles


def measure(folder: Path, first: Path, ranks: Ranks, *, lora: bool) -> tuple[float, float]:
    """What loading takes, after another model has been loaded, which imports what it needs."""
    load(first, ranks, lora=lora)
    with Peak() as peak:
        roles = load(folder, ranks, lora=lora)
    found = peak.above()
    del roles
    return found


def loaded(folder: Path, width: int, layers: int, sizes: Sequence[int], *, lora: bool) -> tuple[int, list[Any]]:
    """The number of weights of a model, and what its loading takes each rank, for every number of ranks."""
    from benchmarks.checkpoints import processes

    # in a process of its own: what this one has had, its children would take up again without a trace
    (count,) = processes(1, lambda ranks: write_pipeline(folder / "model", width, layers))
    processes(1, lambda ranks: write_pipeline(folder / "first", 64, 2))
    load(folder / "first", SINGLE_RANK, lora=False)  # imports what its children would have to
    work = functools.partial(measure, folder / "model", folder / "first", lora=lora)
    return count, [processes(size, work) for size in sizes]


def main() -> None:
    from benchmarks.setting import options, table, write

    weights = {"type": int, "default": 200, "help": "millions of weights"}
    arguments = options(__doc__.splitlines()[0], weights=weights)
    layers = 2 if arguments.smoke else max(2, arguments.weights // 15)
    width = 128 if arguments.smoke else 640
    sizes = (1, 2) if arguments.smoke else (1, 2, 4)
    rows = []
    for lora in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            count, found = loaded(Path(folder), width, layers, sizes, lora=lora)
        rows += [
            {
                "name": f"{'LoRA' if lora else 'all weights'}, {size} rank{'s' * (size > 1)}",
                "share": max(0.0, *(share for share, _ in each)), "peak": max(0.0, *(most for _, most in each)),
            }
            for size, each in zip(sizes, found, strict=True)
        ]  # fmt: skip
    print(table(rows, {"name": "MiB", "share": "share of a rank", "peak": "peak"}))
    write(arguments.output, {"weights": count, "rows": rows})


if __name__ == "__main__":
    main()
