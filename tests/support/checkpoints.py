"""What the tests of checkpoints save, and how they look at it."""

from pathlib import Path

import torch

from burnish.checkpoint.store import CheckpointStore
from burnish.options import CheckpointOptions
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.saved import in_memory

IDENTITY = {"model": "tiny", "algorithm": "diffusion_nft", "parameters": "0123abcd"}
TENSORS = "tensors/rank-00000.safetensors"  # the file of the first rank, or of the only one


def state(update: int, variant: int = 0) -> dict:
    """Every kind of part, and different for every update."""
    weights = torch.full((3000,), float(update)) + variant
    moments = {0: {"step": torch.tensor(float(update)), "exp_avg": weights / 3}}
    group = {"lr": 1e-3, "betas": (0.9, 0.999), "params": [0]}
    return {
        "roles": {"policy": {"layer.weight": weights, "bias": torch.arange(3)}, "old_is_policy": True},
        "groups": {"actor": {"optimizer": {"state": moments, "param_groups": [group]}, "steps": 2 * update}},
        "ema": None,
        "trainer": {"version": update, "optimizer_steps": 2 * update},
        "source": {"position": 8 * update, "data": "ffee"},
    }


def make(folder: Path, *, ranks: Ranks = SINGLE_RANK, **options) -> CheckpointStore:
    return CheckpointStore(folder, CheckpointOptions(**options), ranks)


def save(store: CheckpointStore, update: int, *, score: float | None = None, variant: int = 0) -> Path:
    return store.save(update, state(update, variant), identity=IDENTITY, score=score)


def check(checkpoint, update: int, variant: int = 0) -> None:
    """The checkpoint is of this update, and its content is what was saved, tensor by tensor."""
    assert checkpoint is not None
    assert checkpoint.update == update
    assert same(loaded(checkpoint), state(update, variant))


def loaded(checkpoint) -> dict:
    """All that a checkpoint holds, its tensors too."""
    return in_memory(checkpoint.load(checkpoint.identity))


def same(a, b) -> bool:
    """Equal in every type, number and bit."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def updates(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
