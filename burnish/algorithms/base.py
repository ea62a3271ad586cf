"""What an algorithm is: its options as fields, and what it does with a batch as six methods at most."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import pydantic
from pydantic import BeforeValidator

from burnish.registry import lookup, options

if TYPE_CHECKING:
    from burnish.types.batch import Batch
    from burnish.types.rollout import Loss

Metrics = dict[str, float]


@options
class Algorithm:
    """Base of all algorithms; a subclass is registered under its paper's name.

    ``class GSPO(TokenPolicyGradient, advantage="group", surrogate="gspo")`` has the options of these two registered
    parts as if they stood in the class, which may give them other defaults.
    """

    name: ClassVar[str]
    parts: ClassVar[dict[str, type]] = {}  # the class of its advantage and of its surrogate, where it names them

    def __init_subclass__(cls, **chosen: str) -> None:
        super().__init_subclass__()
        cls.parts = cls.parts | {kind: lookup(kind, name) for kind, name in chosen.items()}
        for kind in chosen:
            _adopt(cls, cls.parts[kind])

    def needs(self) -> Any:
        """What has to be there for this algorithm with these options."""
        raise NotImplementedError

    def complaints(self, samples: int, longest: int) -> Iterator[str]:
        """What these options can't be used with: N samples per update, of at most ``longest`` actions."""
        yield from ()

    def make_memory(self) -> Any:
        """What this algorithm remembers between updates, saved with checkpoints; the default nothing."""
        from burnish.algorithms.memory import Memory

        return Memory({})

    def annotate(self, scored: Any, roles: Any) -> Any:
        """Add what needs a forward pass without gradients; the default needs none."""
        return scored

    def credit(self, annotated: Any) -> tuple[Batch, Metrics]:
        """Turn rewards into a training signal: tensors only, no network. Samples without reward are dropped."""
        raise NotImplementedError

    def micro_batches(self, batch: Any, size: int) -> Iterator[Batch]:
        """Split an optimizer batch into micro-batches of at most ``size`` network rows."""
        raise NotImplementedError

    def loss(self, part: Any, roles: Any) -> Loss:
        """The sum of the loss over the terms of one micro-batch."""
        raise NotImplementedError

    def size(self, batch: Any) -> int:
        """Number of terms in an optimizer batch: what the sum of its losses is divided by."""
        raise NotImplementedError

    def after_update(self, roles: Any, update: int) -> Metrics:
        """What happens once all optimizer steps of a policy update are done; ``update`` counts from 1."""
        return {}


def _adopt(cls: type, part: type) -> None:
    """Give a class the options of a part, before those of its own."""
    own = dict(vars(cls).get("__annotations__", {}))
    hints, taken = get_type_hints(part, include_extras=True), {}
    for name, field in part.__pydantic_fields__.items():  # type: ignore[attr-defined]
        if name != "name":
            taken[name] = hints[name]
            if name not in own:
                setattr(cls, name, pydantic.Field(default=field.default, description=_explained(part, name)))
    cls.__annotations__ = taken | own


def _explained(part: type, option: str) -> str:
    """The text below an option, which stands where its class or a base of it names the option last."""
    classes = [one for one in part.__mro__ if option in vars(one).get("__pydantic_fields__", {})]
    return next(filter(None, (one.__pydantic_fields__[option].description for one in classes)), "")  # type: ignore[attr-defined]


def _made(kind: str, value: Any) -> Any:
    """``NAME`` or ``{name: NAME, option: value}`` as the registered part with its options."""
    if value is None or dataclasses.is_dataclass(value):
        return value
    tree = {"name": value} if isinstance(value, str) else value
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
        raise ValueError(f"it must be the name of a registered {kind}, or {{name: NAME}} with its options")
    try:
        return lookup(kind, tree["name"])(**{**tree, "name": lookup(kind, tree["name"]).name})
    except pydantic.ValidationError as error:
        raise ValueError(f"{kind} {tree['name']}: {_told(error.errors()[0], lookup(kind, tree['name']))}") from error


def _told(error: Any, part: type) -> str:
    """What is wrong with the options of a part."""
    option, what = ".".join(map(str, error["loc"])), error["msg"].removeprefix("Value error, ")
    if error["type"] == "unexpected_keyword_argument":
        known = [field.name for field in dataclasses.fields(part) if field.name != "name"]
        return f"there is no option {option}; its options are {', '.join(known) or 'none'}"
    return f"{option} is {error['input']!r}: {what[:1].lower()}{what[1:]}" if option else what


ChosenAdvantage = Annotated[Any, BeforeValidator(lambda value: _made("advantage", value))]
ChosenSurrogate = Annotated[Any, BeforeValidator(lambda value: _made("surrogate", value))]
