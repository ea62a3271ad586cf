"""burnish export: trained weights as diffusers loads them by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rich.console import Console

from burnish.commands.opening import open_run
from burnish.errors import UserError
from burnish.models.lora import adapter_state, merged_state
from burnish.paths import resolve


def export(run: str, *, output: str, what: Literal["lora", "merged"]) -> int:
    """Write the trained adapter, or the whole pipeline with the training folded in.

    Args:
        run: run folder, or one of its checkpoints.
        output: folder to write; must be new or empty.
        what: ``lora`` for ``load_lora_weights``, ``merged`` for ``from_pretrained``.
    """
    target = Path(output)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"output is {output}, which exists already and is not an empty folder; choose another")
    session, update = open_run(run)
    model, lora = session.roles.model, session.config.model.lora
    if what == "lora" and lora is None:
        raise UserError(f"{run} trained all weights (model.lora is null): there is no adapter; export merged weights")
    with session.trained_weights():
        if what == "lora":
            model.save_lora(target, *adapter_state(model.network, "policy"))
        elif lora is None:
            model.save_pipeline(target, model.network.state_dict())
        else:
            model.save_pipeline(target, merged_state(model.network, "policy"))
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Weights after {update} policy updates: [bold]{target}[/bold]. To load them with diffusers alone:\n")
    base = resolve(session.config.model.path) if what == "lora" else target
    # diffusers wants to hear of the parts that a pipeline does without, though its model_index.json says so
    without = "".join(f", {name}=None" for name in model.absent_parts())
    console.print(f'  pipe = {model.pipeline_class}.from_pretrained("{base}"{without})', markup=False)
    if what == "lora":
        console.print(f'  pipe.load_lora_weights("{target}")', markup=False)
    return 0
