"""One decorator gives a class or a function its name in recipes; what is registered is its own configuration.

Importing a registered class is cheap: modules of algorithms, rewards and models import torch, diffusers or
onnxruntime inside the methods that need them, so that a command line can be checked in a fraction of a second.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import importlib
import importlib.metadata
import inspect
import json
import pkgutil
import sys
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses
import pydantic.fields
import pydantic_core

from burnish.utils.contracts import arguments, summary, unfulfilled
from burnish.utils.errors import UserError, meant
from burnish.utils.user_code import absolute, load_object, path_of, reason

T = TypeVar("T")
PARTS, CALLS = "burnish.rl.algorithm", "burnish.environments.call_formats"
OPTIMIZERS = "burnish.training.optimizers"
CHOICE = "choice"  # type of the error about a name that no entry has
ENTRY_POINTS = "burnish.plugins"  # group in which installed packages name modules that register something


@dataclass(frozen=True)
class Kind:
    """A sort of thing that recipes choose by name."""

    package: str  # of ours, whose modules register what ships with Burnish; or such a module itself
    contract: str  # module:Name of what every entry must be: a base class, or a protocol; see burnish.utils.contracts
    options: bool = True  # a recipe's section fills the fields of its classes
    more: tuple[str, ...] = ()  # further modules that register some
    part: str = ""  # of functions, module:Name of the base of classes that hold the options of one
    part_of_function: str = ""  # the base of those that are made of functions, where it is another
    made: str = ""  # module:function that makes an entry of what a path leads to, where that may be something else
    entries: dict[str, Any] = field(default_factory=dict)


FOR_BOTH = (
    "burnish.rewards.function", "burnish.rewards.judges.rewards", "burnish.rewards.remote",
    "burnish.rewards.reward_model",
)  # fmt: skip
KINDS = {
    "flow algorithm": Kind("burnish.diffusion.algorithms", "burnish.rl.algorithm:Algorithm"),
    "language algorithm": Kind("burnish.language.algorithms", "burnish.rl.algorithm:Algorithm"),
    "advantage": Kind("burnish.rl.rules", f"{PARTS}:AdvantageFunction", part=f"{PARTS}:AdvantagePart"),
    "surrogate": Kind(
        "burnish.rl.objectives",
        f"{PARTS}:SurrogateFunction",
        part=f"{PARTS}:SurrogatePart",
        part_of_function=f"{PARTS}:WholeSamples",
    ),
    "kl estimator": Kind(PARTS, f"{PARTS}:KlFunction", part=f"{PARTS}:Part"),
    "kl gate": Kind("burnish.rl.kl", f"{PARTS}:KlGateFunction", part=f"{PARTS}:Part"),
    "flow reward": Kind("burnish.rewards.images", "burnish.rewards.base:Reward", more=FOR_BOTH),
    "language reward": Kind("burnish.rewards.text", "burnish.rewards.text.base:LanguageReward", more=FOR_BOTH),
    "environment": Kind("burnish.environments", "burnish.environments.base:Environment"),
    "call format": Kind("burnish.environments", f"{CALLS}:CallFunction", part=f"{CALLS}:CallFormat"),
    "optimizer": Kind(OPTIMIZERS, f"{OPTIMIZERS}:OptimizerFunction", part=f"{OPTIMIZERS}:OptimizerPart"),
    "learning rate": Kind(OPTIMIZERS, f"{OPTIMIZERS}:ScheduleFunction", part=f"{OPTIMIZERS}:SchedulePart"),
    "hook": Kind(  # of plugins alone: what they register is called in every run that loads them
        __name__,
        "burnish.hooks:HookFunction",
        options=False,
        part="burnish.hooks:Hook",
        part_of_function="burnish.hooks:FunctionHook",
    ),
    "flow model": Kind(
        "burnish.diffusion.pipeline.model",
        "burnish.diffusion.pipeline.base:FlowModel",
        options=False,
        made="burnish.diffusion.pipeline.model:family_of_class",
    ),
    "language model": Kind(
        "burnish.language.model.universal", "burnish.language.model.universal:LanguageModel", options=False
    ),
}


class Named:
    """Base of what recipes choose by name: a class that is not registered is known by where it is."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = path_of(cls)


@dataclass_transform(kw_only_default=True)
def options(cls: type[T]) -> type[T]:
    """Make a dataclass whose fields are options of a run: checked when made, explained by the string below each."""
    config = pydantic.ConfigDict(extra="forbid", arbitrary_types_allowed=True, defer_build=True)
    made = pydantic.dataclasses.dataclass(kw_only=True, config=config)(cls)
    return made  # type: ignore[return-value]


@dataclass_transform(kw_only_default=True)
def register(kind: str, name: str, **about: Any) -> Callable[[T], T]:
    """Enter a class or a function under ``name``, so that recipes can ask for it.

    The fields of a class are its options: it becomes a dataclass whose options are checked, and explained by the string
    below each. Of a function of tensors, keyword-only parameters are its options, explained by its docstring ("Args:")
    or by ``Annotated[float, "..."]``; the function itself stays what it is.

    Args:
        kind: one of ``KINDS``.
        name: by which recipes know it.
        about: of a function: what it needs of the system, as ``groups=True`` of an advantage; see its kind's base.

    Raises:
        UserError: the name is taken, or it is not what its kind has to be; the message says what is missing.
    """
    if kind not in KINDS:
        raise UserError(f"register({kind!r}, {name!r}): there is no such kind; kinds are {', '.join(KINDS)}")

    def enter(given: T) -> T:
        made = _entry(kind, name, given, about)
        return made if isinstance(given, type) else given

    return enter


def names(kind: str) -> list[str]:
    """Every registered name of a kind, sorted."""
    _import_all(kind)
    return sorted(KINDS[kind].entries)


def entries(kind: str) -> list[Any]:
    """Every entry of a kind, ours first, then those of plugins."""
    _import_all(kind)
    return list(KINDS[kind].entries.values())


def known(kind: str, name: Any) -> bool:
    """Whether there is an entry of that name; plugins of installed packages are opened to find it."""
    if name not in names(kind):
        open_entry_points()
    return isinstance(name, str) and name in KINDS[kind].entries


def lookup(kind: str, name: str) -> Any:
    """The class registered under ``name``; of a function, a class of its options, with the function as ``function``.

    Raises:
        ValueError: nothing has that name; the message lists what exists and suggests the nearest.
    """
    name = named(kind, name)
    if known(kind, name):
        return KINDS[kind].entries[name]
    near = difflib.get_close_matches(name, KINDS[kind].entries, n=1)
    raise ValueError(f"{kind} {name!r} is not known; {meant(near)}known: {', '.join(names(kind))}")


def named(kind: str, name: Any) -> Any:
    """The name under which an entry is known: file.py:Class and package.module:Class are registered as such here.

    Raises:
        UserError: the path leads nowhere, or to something that is not of that kind.
    """
    if not isinstance(name, str) or ":" not in name:
        return name
    where, _, inner = name.rpartition(":")
    path = f"{absolute(where)}:{inner}"
    if path not in KINDS[kind].entries:
        found = load_object(name, kind)
        mine = [known for known, entry in KINDS[kind].entries.items() if entry is found]
        if mine:  # it has a name of its own
            return mine[0]
        _entry(kind, path, _load(KINDS[kind].made)(found) if KINDS[kind].made else found, {})
    return path


@dataclass(frozen=True)
class Choice:
    """Marks an option whose value is an entry of a kind: ``Annotated[Any, Choice("advantage")]``.

    A recipe gives its name, or ``{name: NAME}`` with its options; the value is the entry with its options, or None.
    A bare one stays a name where that is all that was given; see ``chosen_part``.
    """

    kind: str
    bare: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return pydantic_core.core_schema.no_info_plain_validator_function(self.made)

    def made(self, value: Any) -> Any:
        """The entry that a recipe means; errors about its options are those of the option itself."""
        if is_dataclass(value) or (value is None and not self.bare):
            return value
        tree = {"name": value} if value is None or isinstance(value, str) else value
        if not isinstance(tree, dict):
            raise pydantic_core.PydanticCustomError(CHOICE, "no options", {"kind": self.kind})
        name = named(self.kind, tree.get("name"))
        if not known(self.kind, name):
            about = {"kind": self.kind, "name": name, "names": ", ".join(names(self.kind))}
            raise pydantic_core.PydanticCustomError(CHOICE, "there is no {kind} {name}; choose one of {names}", about)
        if self.bare and tree.keys() == {"name"}:
            return name
        entry = lookup(self.kind, name)
        own = tree | {"name": name} if "name" in entry.__pydantic_fields__ else without(tree, "name")
        return validated(entry, own)


def chosen_part(kind: str, value: Any) -> Any:
    """The entry that the value of a bare choice means, with its options."""
    return lookup(kind, value)() if isinstance(value, str) else value


class ReadIf:
    """Marks an option that is read only where another one has one of these values; elsewhere it is refused.

    Args of ``Annotated[float, ReadIf("kind", "linear")]``: an option of the same section, a dotted one of the run, or a
    function of both that says whether it is read; and values, where none means any but null, false, 0 and what is
    empty. ``why`` ends "OPTION is given, but ..." in place of what the other option is.
    """

    def __init__(self, option: str | Callable[[Any, Any], Any], *values: Any, why: str = "") -> None:
        self.option, self.values, self.why = option, values, why


class MayChange:
    """Marks options and sections that may differ when a run resumes: they affect neither its weights nor its curves."""


def validated(kind: Any, value: Any) -> Any:
    """A value as an object of its class, with what JSON allows: [a, b] may be a tuple and 1 a float, true is not 1."""
    return pydantic.TypeAdapter(kind).validate_json(json.dumps(over_defaults(kind, value)), strict=True)


def over_defaults(kind: Any, tree: Any) -> Any:
    """A section's tree, in which an option of an inner section leaves what ``kind`` sets of the others there. One that
    chooses a kind or a name begins with the defaults of that."""
    for option, its in getattr(kind, "__pydantic_fields__", {}).items() if isinstance(tree, dict) else ():
        default, given = its.get_default(call_default_factory=True), tree.get(option)
        if is_dataclass(default) and isinstance(given, dict):
            begun = {} if given.keys() & {"kind", "name"} else own_values(default)
            tree = tree | {option: over_defaults(type(default), begun | given)}
    return tree


def own_values(section: Any) -> dict[str, Any]:
    """Its name, if it has one, and options of a section that are not the defaults of its class."""
    usual = {name: field.get_default(call_default_factory=True) for name, field in fields(section).items()}
    return {name: getattr(section, name) for name in usual if name == "name" or getattr(section, name) != usual[name]}


def without(tree: dict[str, Any], *names: str) -> dict[str, Any]:
    """A section without some of its options."""
    return {name: value for name, value in tree.items() if name not in names}


def fields(options: Any) -> dict[str, pydantic.fields.FieldInfo]:
    """The options of a class or of a section, by name."""
    return {name: field for name, field in options.__pydantic_fields__.items() if not field.exclude}


def explanation(options: Any, name: str) -> str:
    """The string below an option on one line; that of a base class if the class itself has none."""
    cls = options if isinstance(options, type) else type(options)
    own = (vars(base).get("__pydantic_fields__", {}).get(name) for base in cls.__mro__)
    words = [field.description for field in own if field is not None and field.description]
    below = (_docstrings(base.__module__).get((base.__name__, name)) for base in cls.__mro__)
    return " ".join((words or [text for text in below if text] or [""])[0].split())


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """The strings below the options of a module's classes, by class and option; read when somebody asks."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError, KeyError):
        return {}
    return {
        (cls.name, option.target.id): words.value.value
        for cls in tree.body
        if isinstance(cls, ast.ClassDef)
        for option, words in pairwise(cls.body)
        if isinstance(option, ast.AnnAssign) and isinstance(option.target, ast.Name)
        if isinstance(words, ast.Expr) and isinstance(words.value, ast.Constant) and isinstance(words.value.value, str)
    }


@cache
def open_entry_points() -> dict[str, str]:
    """Open the plugins of installed packages: for each of their names, what it opened.

    Raises:
        UserError: one fails to import.
    """
    opened = {}
    for point in importlib.metadata.entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except (Exception, SystemExit) as error:  # whatever its author wrote
            package = point.dist.name if point.dist else "?"
            raise UserError(
                f"plugin {point.name} of the installed package {package} ({point.value}) fails to import: "
                f"{reason(error)}; update or uninstall {package}"
            ) from error
        opened[point.name] = point.value
    return opened


def _entry(kind: str, name: str, given: Any, about: dict[str, Any]) -> Any:
    """Check and enter a class or a function: what a recipe's section is made into."""
    entries, its = KINDS[kind].entries, KINDS[kind]
    theirs = not given.__module__.startswith("burnish.")
    if theirs:
        _import_all(kind)  # so that a name of ours is found to be taken by whoever takes it second
    before = entries.get(name)
    if before is not None and _origin(before) != _origin(given):  # a file may be imported twice, a cell run again
        raise UserError(f"{_what(kind, name, given)} is registered already, by {path_of(before)}; give it another name")
    if theirs and (other := _rather(kind, given)) is not None:
        raise UserError(
            f"{_what(kind, name, given)} is of kind {other}: register it as such, or set the task that uses it"
        )
    contract = its.part if its.part and isinstance(given, type) else its.contract
    if theirs and (lacking := unfulfilled(given, _load(contract))):
        raise UserError(f"{_what(kind, name, given)} {'; '.join(lacking)}")
    made: Any = given if isinstance(given, type) else _of_function(given, name, its.part_of_function or its.part)
    for need, value in about.items():
        setattr(made, need, value)
    if its.part:
        words = pydantic.Field(default=name, description=summary(inspect.getdoc(given) or ""))
        made.__annotations__ = {"name": Literal[name]} | vars(made).get("__annotations__", {})
        made.name = words
    if its.options and "__pydantic_fields__" not in vars(made):
        made = options(made)
    made.name = name
    entries[name] = made
    return made


def _what(kind: str, name: str, given: Any) -> str:
    return f"{kind} {name!r} ({path_of(given)})"


def _origin(thing: Any) -> tuple[str, str]:
    """The file, or else the module, that something is from, and its name there."""
    module = sys.modules.get(thing.__module__)
    return getattr(module, "__file__", None) or thing.__module__, thing.__qualname__


def _rather(kind: str, given: Any) -> str | None:
    """Another kind that a class of the user is of: its contract is narrower, or one of our bases is of that kind."""
    if not isinstance(given, type):
        return None
    own = _load(KINDS[kind].contract)
    for other, its in KINDS.items():
        contract = _load(its.contract)
        if contract is not own and own in contract.__mro__ and contract in given.__mro__:
            return other
        if (
            contract is own
            and other != kind
            and any(one.__module__.startswith(f"{its.package}.") for one in given.__mro__)
        ):
            return other
    return None


def _of_function(function: Callable[..., Any], name: str, base: str) -> type:
    """A class whose fields are the keyword-only parameters of a function, and which has it as ``function``."""
    parameters = inspect.signature(function).parameters.values()
    own = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
    loose = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty]
    if loose:
        raise UserError(
            f"{path_of(function)}: parameter {loose[0]} is not an option; write *, before it to make it one"
        )
    bare = [one.name for one in own if one.annotation is one.empty]
    if bare:
        raise UserError(f"{path_of(function)}: parameter {bare[0]} has no type; write it as in {bare[0]}: float = 1.0")
    # types of tensors are not resolved: their modules may be imported for type checkers alone
    holder = type(name, (), {"__annotations__": {one.name: one.annotation for one in own}})
    holder.__module__ = function.__module__
    told = arguments(inspect.getdoc(function) or "")
    body: dict[str, Any] = {"__annotations__": {}, "__module__": function.__module__}
    for option, hint in typing.get_type_hints(holder, include_extras=True).items():
        words = [extra for extra in getattr(hint, "__metadata__", ()) if isinstance(extra, str)]
        default = inspect.signature(function).parameters[option].default
        given = {} if default is inspect.Parameter.empty else {"default": default}
        body["__annotations__"][option] = hint
        body[option] = pydantic.Field(description=words[0] if words else told.get(option, ""), **given)

    def reduced(self: Any) -> tuple[Any, ...]:  # the class has the function's name, by which pickle would find that
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return _remade, (type(self).function, values)

    body |= {"__qualname__": function.__qualname__, "__doc__": inspect.getdoc(function) or "", "__reduce__": reduced}
    return type(function.__name__, (_load(base),), body | {"function": staticmethod(function)})


def _remade(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    """Options of a registered function, in another process."""
    every: Iterable[Any] = (kind.entries.get(options["name"]) for kind in KINDS.values())
    return next(one for one in every if getattr(one, "function", None) is function)(**options)


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def _import_all(kind: str) -> None:
    package = importlib.import_module(KINDS[kind].package)
    own = [f"{package.__name__}.{module.name}" for module in pkgutil.iter_modules(getattr(package, "__path__", []))]
    for module in (*own, *KINDS[kind].more):
        importlib.import_module(module)
