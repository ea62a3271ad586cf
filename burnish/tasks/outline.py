"""Names of layers in a run's options, matched with its networks before any weight is read."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import TYPE_CHECKING

from burnish.options.language import LanguageLoraOptions
from burnish.options.model import CommonModelOptions
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.tasks.assembly import Assembly

log = logging.getLogger(__name__)


def check_layers(assembly: Assembly) -> None:
    """Make the networks without memory, by their configuration files, and do to them what the options name layers for.

    Adapters, modules trained in full, frozen and excluded layers, and an adapter to go on from: the same code matches
    them here that does so in the run.

    Args:
        assembly: of the run; stays as it is.

    Raises:
        UserError: an option names layers that the network doesn't have, or an adapter is of other ones.
    """
    model = assembly.config.model
    if not _names_layers(model):
        return
    import torch
    from accelerate import init_empty_weights

    try:
        outline = assembly.outline()
    except UserError as error:
        log.debug("layers are matched when weights are loaded: %s", error)  # which says what is wrong with the files
        return
    assembly.match_layers(outline)
    outline.device = torch.device("meta")
    with init_empty_weights():
        _without_forwards(assembly).load_roles(outline)


def _names_layers(model: CommonModelOptions) -> bool:
    """Whether options of a model stand for layers or blocks that it may not have; a family's own do not."""
    lora, blocks = model.lora, model.gradient_checkpointing
    named = [] if lora is None else [lora.targets is not None, lora.exclude, lora.path]
    if isinstance(lora, LanguageLoraOptions):
        named += [lora.modules_to_save, lora.vision]
    counted = not isinstance(blocks, bool)
    return counted or model.quantization is not None or any(named) or bool(getattr(model, "freeze", ()))


def _without_forwards(assembly: Assembly) -> Assembly:
    """The like of an assembly, but that nothing is asked for which the networks would have to be run for."""
    config = deepcopy(assembly.config)
    if hasattr(config.model, "router_aux_loss_coef"):
        config.model.router_aux_loss_coef = 0.0  # how its class can be run is found out by running it
    return type(assembly)(config)
