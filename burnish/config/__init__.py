"""The configuration of a run: ``load`` a recipe, check it, ``describe`` it; torch is never imported here."""

from burnish.config.load import load
from burnish.config.run import RunConfig
from burnish.config.text import changes, describe, dump, fingerprint, to_dict

__all__ = ["RunConfig", "changes", "describe", "dump", "fingerprint", "load", "to_dict"]
