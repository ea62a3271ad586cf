"""burnish export: trained weights as diffusers, transformers and peft load them by themselves."""

from __future__ import annotations

from typing import Literal

import torch
from rich.markup import escape

from burnish.commands.opening import open_run, output_folder
from burnish.models.lora import adapter_state, in_precision, merged_state
from burnish.utils import terminal
from burnish.utils.disk import writing
from burnish.utils.errors import UserError
from burnish.utils.paths import resolve
from burnish.utils.reading import checked_path

LOST = 0.01  # part of an adapter whose loss is worth a line


def export(
    run: str, *, output: str, what: Literal["lora", "merged"], dtype: Literal["float32", "bfloat16"] | None = None
) -> int:
    """Write the trained adapter, or the whole model with the training folded in.

    Args:
        run: run folder, or one of its checkpoints.
        output: folder to write; must be new or empty.
        what: ``lora`` for the adapter alone, ``merged`` for ``from_pretrained``.
        dtype: precision of merged weights; None takes that in which they were trained.
    """
    if dtype is not None and what == "lora":
        raise UserError(f"--dtype is {dtype}, but an adapter is always written in float32; leave it out")
    target = checked_path(output, "--output")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"output is {output}, which exists already and is not an empty folder; choose another")
    assembly, update = open_run(run, samples=False)
    model, lora = assembly.roles.model, assembly.config.model.lora
    if what == "lora" and lora is None:
        raise UserError(f"{run} trained all weights (model.lora is null): there is no adapter; export merged weights")
    output_folder(output)
    precision, lost = None if dtype is None else getattr(torch, dtype), 0.0
    with assembly.trained_weights(), writing(target):
        if what == "lora":
            model.save_lora(target, *adapter_state(model.network, "policy"))
        elif lora is None:
            assembly.save(target, in_precision(model.network.state_dict(), precision))
        else:
            weights, lost = merged_state(model.network, "policy", dtype=precision)
            assembly.save(target, weights)
    console = terminal.console(highlight=False, soft_wrap=True)
    if lost > LOST:
        console.print(
            f"The merged weights are bfloat16, which rounds off {lost:.0%} of what the adapter adds to them. "
            "--dtype float32 keeps all of it in twice the space, and so does --format lora.\n"
        )
    base = resolve(assembly.config.model.path) if what == "lora" else target
    lines, library = assembly.loading_lines(base, target if what == "lora" else None), assembly.library
    console.print(f"Weights after {update} policy updates: [bold]{escape(str(target))}[/bold]. With {library} alone:\n")
    for line in lines:
        console.print(f"  {line}", markup=False)
    return 0
