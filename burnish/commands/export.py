"""burnish export: trained weights as diffusers, transformers and peft load them by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from burnish.commands.opening import open_run
from burnish.disk import writing
from burnish.errors import UserError
from burnish.models.lora import adapter_state, merged_state
from burnish.paths import resolve
from burnish.session import LanguageSession


def export(run: str, *, output: str, what: Literal["lora", "merged"]) -> int:
    """Write the trained adapter, or the whole model with the training folded in.

    Args:
        run: run folder, or one of its checkpoints.
        output: folder to write; must be new or empty.
        what: ``lora`` for the adapter alone, ``merged`` for ``from_pretrained``.
    """
    target = Path(output)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise UserError(f"output is {output}, which exists already and is not an empty folder; choose another")
    session, update = open_run(run, samples=False)
    model, lora = session.roles.model, session.config.model.lora
    if what == "lora" and lora is None:
        raise UserError(f"{run} trained all weights (model.lora is null): there is no adapter; export merged weights")
    language = isinstance(session, LanguageSession)
    save = model.save if language else model.save_pipeline
    with session.trained_weights(), writing(target):
        if what == "lora":
            model.save_lora(target, *adapter_state(model.network, "policy"))
        elif lora is None:
            save(target, model.network.state_dict())
        else:
            save(target, merged_state(model.network, "policy"))
    console = Console(highlight=False, soft_wrap=True)
    base = resolve(session.config.model.path) if what == "lora" else target
    lines = (_transformers if language else _diffusers)(model, base, target, what)
    library = "transformers" if language else "diffusers"
    console.print(f"Weights after {update} policy updates: [bold]{target}[/bold]. With {library} alone:\n")
    for line in lines:
        console.print(f"  {line}", markup=False)
    return 0


def _diffusers(model: Any, base: Path, target: Path, what: str) -> list[str]:
    # diffusers wants to hear of the parts that a pipeline does without, though its model_index.json says so
    without = "".join(f", {name}=None" for name in model.absent_parts())
    load = f'pipe = {model.pipeline_class}.from_pretrained("{base}"{without})'
    return [load, *([f'pipe.load_lora_weights("{target}")'] if what == "lora" else [])]


def _transformers(model: Any, base: Path, target: Path, what: str) -> list[str]:
    load = f'model = {type(model.network).__name__}.from_pretrained("{base}")'
    return [load, *([f'model = peft.PeftModel.from_pretrained(model, "{target}")'] if what == "lora" else [])]
