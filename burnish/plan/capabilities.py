"""What classes of transformers can do beside their own forward, measured on a tiny model of each.

A run compares log-probs when it loads a model. Those of a forecast have no values that could be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from burnish.language.config import LanguageConfig
from burnish.plan.counter import WEIGHTS, LiveBytes
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.language.model.capabilities import Capabilities


@contextmanager
def known_capabilities(config: Any, counter: LiveBytes, *, shared: bool) -> Iterator[None]:
    """Have models take over what was measured, where there is a tiny one of their class.

    Args:
        config: of a run, with models that can be read here.
        counter: which will be active.
        shared: ranks share the networks, so that each holds a copy of their first layers for as long as it compares.
    """
    if not isinstance(config, LanguageConfig):
        yield
        return
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    from burnish.language.model.capabilities import plannable
    from burnish.language.model.forwards import switch
    from burnish.language.model.universal import LanguageModel

    known = {kind: found for kind in _kinds(config) if (found := measured(kind)) is not None}
    replaced: Any = LanguageModel
    try_out, learn = LanguageModel.try_out, LanguageModel._learn_media

    def tried(self: LanguageModel) -> None:
        found = known.get(self.config.model_type)
        if found is None:
            try_out(self)
            return
        if shared:
            counter.label(WEIGHTS, [torch.empty_like(weight) for weight in self.first_layers().parameters()])
        self.capabilities = found
        self.forwards.collation = replace(self.forwards.collation, mixes=found.mixes)
        if found.packed and not plannable(self, found):
            self.capabilities = replace(found, packed=False, fast=False)
        if self.capabilities.packed:
            switch(self.network, self.text(self.network), on=True, tower=not found.unpacked)

    def learned(self: LanguageModel) -> Any:
        with _disable_current_modes():  # processors look at values
            return learn(self)

    replaced.try_out, replaced._learn_media = tried, learned
    try:
        yield
    finally:
        replaced.try_out, replaced._learn_media = try_out, learn


def _kinds(config: LanguageConfig) -> Iterator[str]:
    """The model_type of every model of a run."""
    from burnish.language.model.loading import read_config
    from burnish.language.teachers import options_of

    teachers = getattr(config.algorithm, "teachers", None) or ()
    for options in (config.model, *(options_of(config.model, one) for one in teachers if one.path is not None)):
        yield str(read_config(options)[1].get("model_type"))


@cache
def measured(model_type: str) -> Capabilities | None:
    """What a class can do; None without a tiny model of it."""
    import torch

    from burnish.language.model.universal import LanguageModel
    from burnish.models.tiny import LANGUAGE, describe
    from burnish.models.tiny.language import write

    try:
        tiny = describe(model_type, LANGUAGE)
    except UserError:
        return None
    with TemporaryDirectory() as folder:
        write(tiny, Path(folder), seed=0)
        model = LanguageModel.load(Path(folder), dtype=torch.float32, compute=torch.float32, device="cpu")
        model.try_out()
    return model.capabilities
