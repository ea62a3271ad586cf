"""Opens what eval, sample and export work on: a run, one of its checkpoints, or a recipe."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.config import RunConfig, load
from burnish.config.hub import with_models
from burnish.config.load import recipe_names, used_by
from burnish.config.run_folder import RunFolder
from burnish.config.tasks import DEFAULT, TASKS, task_named
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import UserError
from burnish.utils.hub import hub_name, index_in
from burnish.utils.paths import MARK, check_output, resolve
from burnish.utils.reading import checked_path
from burnish.utils.terminal import loading_pytorch, progress

if TYPE_CHECKING:
    from burnish.tasks import Assembly

log = logging.getLogger(__name__)

LAYER = ".lora_A."  # behind the name of a layer
NETWORKS = ("transformer", "transformer_2", "unet")  # usual names of those that have adapters
BARE = Path(__file__).parents[1] / "evaluation" / "bare"  # recipes of models as they are, by task


def open_run(
    source: str,
    overrides: Sequence[str] = (),
    *,
    samples: bool = True,
    check: Callable[[RunConfig], None] = lambda config: None,
) -> tuple[Assembly, int]:
    """An assembly with the weights of a run or the untrained weights of a recipe.

    Args:
        source: a run folder (its newest checkpoint), a folder inside its ``checkpoints``, or a recipe.
        overrides: dotted options that differ from the run's.
        samples: whether it will be sampled from or evaluated, which may call code that its configuration names.
        check: of the configuration, before anything is loaded.

    Returns:
        The assembly, and the number of policy updates of its weights.

    Raises:
        UserError: there is no such run or checkpoint, or the checkpoint is of another model.
    """
    if samples:
        overrides = ["validation.before=true", *overrides]  # a run that validates nothing refuses options of that
    path = checked_path(source, "SOURCE")
    if not path.is_dir():
        if not path.is_file() and (len(path.parts) != 1 or path.suffix) and source not in recipe_names():
            raise UserError(
                f"{source} does not exist; give the folder of a run, one of its checkpoints, or a recipe (burnish "
                "recipes lists those that ship with Burnish)"
            )
        check(recipe_config := load(source, list(overrides)))
        return _matched(with_models(recipe_config)), 0
    wanted = path if path.parent.name == "checkpoints" else None
    folder = RunFolder(path.parent.parent if wanted else path)
    if not folder.config.exists():
        raise UserError(
            f"{source} is neither a run (it has no config.yaml), a checkpoint of one, nor a recipe; give one of these. "
            f"A model is not a run: give a recipe, with model.path={source}"
        )
    say_used(folder.config)
    config: RunConfig = load(str(folder.config), list(overrides))
    check(config)
    config = with_models(config)
    with loading_pytorch():
        from burnish.checkpoint.files import read
        from burnish.checkpoint.store import CheckpointStore
        from burnish.tasks import assemble
    store = CheckpointStore(folder.checkpoints, config.checkpoint)
    checkpoint = read(Path(wanted)) if wanted else store.latest()
    if checkpoint is None:
        raise UserError(
            f"{source} has no complete checkpoint yet; wait until training writes one, every checkpoint.every updates"
        )
    assembly = assemble(config)
    with progress("Loading the model"):
        assembly.load_weights(checkpoint.load(assembly.identity, assembly.weights()))
    return assembly, checkpoint.update


def say_used(config: Path) -> None:
    """Say what a run's configuration names before any of it is used: the folder may come from somebody else."""
    if named := [f"{option}={value:.300}" for option, value in used_by(str(config))]:
        log.warning(
            "%s makes this machine run or ask %s; check it first if the run is not yours", config, ", ".join(named)
        )


def open_model(source: str, task: str | None = None, overrides: Sequence[str] = ()) -> tuple[Assembly, None] | None:
    """A model as it is, with or without an adapter: nothing of it is trained.

    Args:
        source: MODEL or MODEL+LORA, each a folder, the first also a name on the hub.
        task: that the model is for; None takes that of a folder's files.
        overrides: dotted options that differ from what a bare model is sampled with.

    Returns:
        The assembly, and no number of policy updates; None if the source is a run, a checkpoint or a recipe.

    Raises:
        UserError: model and adapter don't fit together.
    """
    path, plus, adapter = source.rpartition("+")
    if not plus or checked_path(source, "SOURCE").exists():  # a folder may have a plus in its name
        path, adapter = source, ""
    if task is None:
        path = str(checked_path(path, "SOURCE"))
        tasks = [name for name in TASKS if index_in(resolve(path), task_named(name).config.model_index).is_file()]
        if not tasks:
            return None
        task = tasks[0]
    elif hub_name(path) is None and not index_in(resolve(path), task_named(task).config.model_index).is_file():
        return None
    options = [f"model.path={path}", *(_adapter_options(adapter, task) if adapter else []), *overrides]
    config = with_models(load(str(BARE / f"{task}.yaml"), options))
    try:
        return _matched(config), None
    except UserError as error:
        if not adapter:
            raise
        why = f"the adapter {adapter} is not one of the model {path}"
        raise UserError(f"SOURCE is {source}, but {why}: {error}; give the model that it was trained on") from error


def _matched(config: RunConfig) -> Assembly:
    """An assembly whose networks have the layers that options, or an adapter's files, name."""
    with loading_pytorch():
        from burnish.tasks import assemble
        from burnish.tasks.assembly import check_layers
    assembly = assemble(config)
    check_layers(assembly)
    return assembly


def _adapter_options(adapter: str, task: str) -> list[str]:
    """What an adapter says of itself, as options of the model."""
    from burnish.diffusion.pipeline.adapters import read_adapter
    from burnish.models.adapters import read_settings

    folder, option = checked_path(adapter, "the adapter of SOURCE"), "the adapter of SOURCE"
    if not folder.is_dir():
        raise UserError(f"SOURCE has the adapter {adapter}, which is not a folder; give MODEL+FOLDER")
    networks: tuple[str, ...] = ()
    if task == DEFAULT:
        networks = tuple(one.name for one in folder.iterdir() if one.is_dir()) or NETWORKS[:1]
    found = read_adapter(folder, option, networks)
    options: dict[str, Any] = {
        "path": str(folder), "rank": found.rank, "alpha": float(found.rank if found.alpha is None else found.alpha),
        "rslora": found.rslora, "dora": any(".lora_magnitude_vector" in name for name in found.weights),
        "targets": sorted({_layer(name, (*NETWORKS, *networks)) for name in found.weights if LAYER in name}),
    }  # fmt: skip
    if task != DEFAULT and (saved := read_settings(folder, option).get("modules_to_save")):
        options["modules_to_save"] = list(saved)
    return [f"model.lora={json.dumps(options)}"]


def _layer(name: str, networks: Sequence[str]) -> str:
    """The layer of a weight of an adapter, by its full name in its network."""
    layer = name.split(LAYER)[0]
    return next((layer.removeprefix(f"{one}.") for one in networks if layer.startswith(f"{one}.")), layer)


def output_folder(output: str, command: str) -> Path:
    """Create the output folder of a command, before anything is computed.

    Raises:
        UserError: it can't be written, or holds files that the command did not write.
    """
    folder = checked_path(output, "--output")
    check_output(folder, command)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if command != "export":  # takes new folders alone, and others load or publish them
        write_atomically(folder / MARK, command.encode())
    return folder
