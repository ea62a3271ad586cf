"""burnish export: trained weights in the formats of diffusers, transformers and peft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.markup import escape

from burnish import __version__
from burnish.commands.opening import open_run, output_folder
from burnish.report.card import head
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import check_output
from burnish.utils.reading import checked_path

if TYPE_CHECKING:
    import torch

    from burnish.tasks import Assembly

Format = Literal["lora", "merged"]
Dtype = Literal["float32", "bfloat16"]
LOST = 0.01  # fraction of an adapter lost by rounding that is worth a warning


def export(run: str, *, output: str, what: Format, dtype: Dtype | None = None) -> int:
    """Write the trained adapter, or the full model with the trained weights.

    Args:
        run: run folder, or one of its checkpoints.
        output: folder to write; must be new or empty.
        what: ``lora`` for the adapter alone, ``merged`` for ``from_pretrained``.
        dtype: precision of merged weights; None takes that of training.
    """
    exported = write_export(run, output, what, dtype)
    assembly, target = exported.assembly, exported.folder
    with writing(target):
        (target / "README.md").write_text(model_card(assembly, what, exported.update))
    console = terminal.console(highlight=False, soft_wrap=True)
    if exported.warning:
        console.print(f"{exported.warning}\n")
    base = assembly.model_folder if what == "lora" else target
    lines, library = assembly.loading_lines(base, target if what == "lora" else None), assembly.library
    console.print(
        f"Weights after {exported.update} policy updates: [bold]{escape(str(target))}[/bold]. With {library} alone:\n"
    )
    for line in lines:
        console.print(f"  {line}", markup=False)
    return 0


@dataclass(frozen=True)
class Exported:
    """Weights in a folder, and what they are of."""

    assembly: Assembly
    folder: Path
    update: int
    lost: float  # fraction of an adapter that rounding loses

    @property
    def warning(self) -> str:
        """What rounding has lost; "" if it is not worth mentioning."""
        if self.lost <= LOST:
            return ""
        return (
            f"Rounding the merged weights to bfloat16 loses {self.lost:.0%} of the adapter. Use --dtype float32, twice "
            "the size, or --format lora."
        )


def write_export(run: str, output: str, what: Format, dtype: Dtype | None, overrides: Sequence[str] = ()) -> Exported:
    """Write the weights of a run into a new folder, without a card; ``overrides`` differ from the run's options.

    Raises:
        UserError: the folder is not empty, or there is no such run or adapter.
    """
    if dtype is not None and what == "lora":
        raise UserError(f"--dtype is {dtype}, but an adapter is always written in float32; leave it out")
    target = checked_path(output, "--output")
    check_output(target, "export")
    # adapters are merged into the weights of model.path, not into a quantised copy of them
    unquantised = ["model.quantization=null"] if what == "merged" else []
    assembly, update = open_run(run, [*overrides, *unquantised], samples=False)
    if what == "lora" and assembly.config.model.lora is None:
        raise UserError(f"{run} trained all weights (model.lora is null): there is no adapter; export merged weights")
    output_folder(output, "export")
    import torch

    with writing(target):
        lost = write_weights(assembly, target, what, dtype=None if dtype is None else getattr(torch, dtype))
    return Exported(assembly, target, update, lost)


def model_card(assembly: Assembly, what: Format, update: int) -> str:
    """A README.md that the Hugging Face hub reads: what was trained, how, and how to load it."""
    config, here = assembly.config, Path("PATH/OF/THIS/FOLDER")
    hub = config.model.path if config.model.revision else None  # a folder of this machine says nothing elsewhere
    base = Path(hub or "PATH/OF/THE/BASE/MODEL") if what == "lora" else here
    lines = assembly.loading_lines(base, here if what == "lora" else None)
    rewards = ", ".join(f"{label} (weight {one.weight:g})" for label, one in config.rewards.items())
    known = head(assembly.library, config.algorithm.name, what, hub, {})
    return "\n".join(
        [
            f"{known}{'An adapter' if what == 'lora' else 'A model'} that was trained with Burnish {__version__}: "
            f"{config.algorithm.name}, {update} policy updates, rewards: {rewards or 'none'}.",
            "", "```python", *lines, "```", "",
        ]
    )  # fmt: skip


def write_weights(assembly: Assembly, folder: Path, what: Format, *, dtype: torch.dtype | None = None) -> float:
    """Write the trained weights into a folder; returns the fraction of an adapter that rounding loses.

    Args:
        assembly: with the weights.
        folder: empty.
        what: as ``export`` takes it.
        dtype: precision of merged weights; None takes that of training.
    """
    from burnish.models.lora import in_precision, merged_state

    model, lost = assembly.roles.model, 0.0
    with assembly.trained_weights():
        if what == "lora":
            assembly.save_adapter(folder)
        elif assembly.config.model.lora is None:
            assembly.save(folder, in_precision(model.network.state_dict(), dtype))
        else:
            weights, lost = merged_state(model.network, "policy", dtype=dtype)
            assembly.save(folder, weights)
    return lost
