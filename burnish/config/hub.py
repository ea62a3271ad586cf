"""Models that a run names of the Hugging Face hub, downloaded before anything else and recorded by their commits."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from burnish.config.run import RunConfig
from burnish.config.yaml_text import at, parse
from burnish.language.model.tokenizer import INDEX as TOKENIZER
from burnish.options.language import LanguageModelOptions
from burnish.rewards.images.learned import LearnedReward
from burnish.rewards.networks.loading import NetworkOptions, Source
from burnish.utils.addresses import is_address
from burnish.utils.hub import WORDS, HubModel, hub_model, is_commit
from burnish.utils.paths import CONFIG
from burnish.utils.reading import checked_path, read_text

log = logging.getLogger(__name__)

Place = tuple[str | int, ...]  # of a section in the configuration


def with_models(config: RunConfig) -> RunConfig:
    """The configuration with the commit of every model of the hub; what is not in the cache is downloaded.

    A run that goes on takes the commits that it began with, though a branch may have moved since. Rewards that are for
    machines that have their weights are left out elsewhere (``LearnedReward.if_cached``).

    Args:
        config: of the run.

    Raises:
        UserError: a model can't be had.
    """
    pinned, recorded = deepcopy(config), _recorded(config)
    for label in _left_out(pinned, recorded):
        log.info("reward %s is left out: its weights are not on this machine, or another reward is by them", label)
        del pinned.rewards[label]
    for place, section, source, model in _models(pinned):
        if model is None:
            continue
        before, _, known = str(at(recorded, *place, source.option)).partition("@")
        if before == model.name and not is_commit(model.revision) and is_commit(known):
            model = replace(model, revision=known)
        setattr(section, source.option, f"{model.name}@{model.folder().name}")
    return pinned


def missing_model(config: RunConfig) -> HubModel | None:
    """The trained model, if it is one of the hub that is not in the cache. Nothing is asked of a network."""
    model = hub_model(config.model.path, index=config.model_index)
    return model if model is not None and model.cached() is None else None


def missing_scorers(config: RunConfig) -> Iterator[HubModel]:
    """What learned rewards load of the hub and is not in the cache. Nothing is asked of a network."""
    for _, section, _, model in _models(config):
        if not isinstance(section, LearnedReward) or section.if_cached:
            continue
        if model is not None and model.cached() is None:
            yield model


def _left_out(config: RunConfig, recorded: Any) -> list[str]:
    """Rewards with ``if_cached`` whose weights are not here, are another reward's too, or that a run began without."""
    models = [(place[1], model) for place, *_, model in _models(config) if place[0] == "rewards"]
    lacking = {label for label, model in models if model is not None and model.cached() is None}
    learned = {label: one for label, one in config.rewards.items() if isinstance(one, LearnedReward)}
    others = [(one.name, one.path) for one in learned.values() if not one.if_cached]
    begun = at(recorded, "rewards")
    return [
        label
        for label, one in learned.items()
        if one.if_cached
        and (label in lacking or (one.name, one.path) in others or (isinstance(begun, dict) and label not in begun))
    ]


def _models(config: RunConfig) -> Iterator[tuple[Place, Any, Source, HubModel | None]]:
    """Sections that name a model, by which options, and which of the hub it is; None for a directory."""
    trained = (Source(index=config.model_index),)
    sections: list[tuple[Place, Any, tuple[Source, ...]]] = [(("model",), config.model, trained)]
    if isinstance(config.model, LanguageModelOptions):
        sections.append((("model",), config.model, (Source("tokenizer", TOKENIZER, WORDS),)))
    if config.model.lora is not None:
        files = config.adapter_files
        sections.append((("model", "lora"), config.model.lora, (Source(index=files[0], files=files),)))
    teachers = getattr(config.algorithm.needs(), "teachers", ())
    sections += [(("algorithm", "teachers", i), teacher, trained) for i, teacher in enumerate(teachers)]
    for name, one in config.rewards.items():
        if isinstance(one, NetworkOptions):
            sections.append((("rewards", name), one, one.sources()))
    for place, section, sources in sections:
        within = f"{place[0]}{''.join(f'[{x}]' if isinstance(x, int) else f'.{x}' for x in place[1:])}"
        for source in sources:
            if (path := getattr(section, source.option)) is not None:
                option = f"{within}.{source.option}"
                yield place, section, source, hub_model(path, index=source.index, option=option, files=source.files)


def _recorded(config: RunConfig) -> Any:
    """The configuration of the run that goes on, as it was written; {} for a new one."""
    if config.resume == "never":
        return {}
    if config.resume == "auto" or is_address(config.resume):
        folder = checked_path(config.output_dir, "output_dir")
    else:
        folder = checked_path(config.resume, "resume").resolve().parents[1]
    file: Path = folder / CONFIG
    return parse(read_text(file)) if file.is_file() else {}
