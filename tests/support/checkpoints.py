"""What the tests of checkpoints save, and how they look at it."""

from pathlib import Path

from burnish.checkpoint.store import CheckpointStore
from burnish.options import CheckpointOptions
from burnish.training.ranks import SINGLE_RANK, Ranks
from burnish.training.saved import in_memory

IDENTITY = {"model": "tiny", "algorithm": "diffusion_nft", "parameters": "0123abcd"}
TENSORS = "tensors/rank-00000.safetensors"  # the file of the first rank, or of the only one


def make(folder: Path, *, ranks: Ranks = SINGLE_RANK, **options) -> CheckpointStore:
    return CheckpointStore(folder, CheckpointOptions(**options), ranks)


def loaded(checkpoint) -> dict:
    """All that a checkpoint holds, its tensors too."""
    return in_memory(checkpoint.load(checkpoint.identity))
