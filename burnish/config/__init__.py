"""The configuration of a run: ``load`` a recipe, check it, ``describe`` it; torch is never imported here."""

from burnish.config.load import load
from burnish.config.run import RunConfig
from burnish.config.text import changes, describe, dump, to_dict

__all__ = ["RunConfig", "changes", "describe", "dump", "load", "to_dict"]
