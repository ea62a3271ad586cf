"""Modules of the user that register what recipes then name: opened before anything else of a configuration is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from burnish.config.yaml_text import at, merge, nest, show
from burnish.utils.addresses import is_address
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.paths import PREFIX
from burnish.utils.user_code import absolute, load_module, names_code, reason


def open_plugins(plugins: Any) -> list[str]:
    """Import modules and files, so that they register what is in them.

    Args:
        plugins: as they stand in a recipe.

    Returns:
        The same, files by their full paths.

    Raises:
        UserError: one is not there, or fails to import.
    """
    if not isinstance(plugins, list) or not all(isinstance(where, str) and where for where in plugins):
        raise ConfigError(f"plugins is {show(plugins):.80}; it must be a list, as in [my_package,path/to/file.py]")
    for i, where in enumerate(plugins):
        try:
            load_module(where)
        except (Exception, SystemExit) as error:  # the module is the user's: anything may go wrong in it
            raise UserError(
                f"plugins[{i}] is {where}, which fails to import: {reason(error)}; fix or remove it; modules are found "
                "on PYTHONPATH, and files from the folder in which the command is started"
            ) from error
    return [absolute(where) for where in plugins]


PROGRAMS = {"plugins", "command", "python", "servers", "trackers"}  # hold modules, programs or services, by any name


def uses(tree: Any, *place: str) -> Iterator[tuple[str, str]]:
    """Code, programs and addresses that a recipe's text names wherever it may: each option, and its value."""
    if isinstance(tree, str):
        code = names_code(tree) and not tree.startswith(PREFIX)
        if code or is_address(tree) or PROGRAMS.intersection(place):
            yield ".".join(place), tree
    elif isinstance(tree, Mapping | list):
        for name, value in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
            yield from uses(value, *place, str(name))


def chosen_by_path(tree: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, str]]:
    """Every option that names a class by its path: where it stands, the attribute with its kind, and the path."""
    rewards = tree.get("rewards")
    labels = rewards if isinstance(rewards, Mapping) else ()
    named = [
        ("algorithm", "name"),
        ("environment", "name"),
        ("model", "family"),
        *(("rewards", one, "name") for one in labels),
    ]
    for place in named:
        value = at(tree, *place)
        if isinstance(value, str) and ":" in value:
            yield place, f"{place[0].removesuffix('s')}_kind", value


def with_whole_paths(tree: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the files of classes that it names by path written so that they are found from elsewhere."""
    for place, _, name in list(chosen_by_path(tree)):
        where, _, inner = name.rpartition(":")
        tree = merge(tree, nest({".".join(place): f"{absolute(where)}:{inner}"}))
    return tree


def portable(option: str, value: Any) -> Any:
    """What is left of a class that is named by its path when its file moves; other options as they are."""
    if option.endswith((".name", ".family")) and isinstance(value, str) and ".py:" in value:
        return value.rpartition("/")[2]
    return value
