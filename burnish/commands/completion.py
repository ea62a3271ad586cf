"""burnish completion: what a shell needs to complete command lines, and what may come next in one."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from burnish.utils.paths import RECIPES, holds_run

Arguments = Mapping[str, Callable[[argparse.ArgumentParser], None]]  # of each command

SCRIPTS = {
    "bash": """\
_burnish_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" one
    COMPREPLY=()
    while IFS= read -r one; do COMPREPLY+=("$one"); done < <(burnish completion bash -- "$line" 2>/dev/null)
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=./] ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _burnish_complete burnish
""",
    "zsh": """\
#compdef burnish
_burnish() {
    local -a found
    found=("${(@f)$(burnish completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z "${found[1]}" ]]; then _files; return; fi
    compadd -S '' -- "${(@M)found:#*[=./]}"
    compadd -- "${(@)found:#*[=./]}"
}
compdef _burnish burnish
""",
    "fish": """\
function __burnish_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found (burnish completion fish -- $words[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c burnish -f -a '(__burnish_complete)'
""",
}
# of folders and recipes that are offered: nothing that a shell would take for more than a name
_NAME = re.compile(r"[\w./+@,-]+")
_RUNS = ("RUN", "SOURCE")
MOST = 500  # folders that are offered


def completion(shell: str, words: Sequence[str], commands: Arguments) -> int:
    """Print the script of a shell, or what may come next in a command line, one candidate a line.

    Args:
        shell: its name.
        words: none for the script; else those after ``burnish``, the last one up to the cursor. Bash gives its line.
        commands: how the arguments of each command are read.
    """
    if not words:
        print(SCRIPTS[shell], end="")
        return 0
    given = _split(words[0]) if shell == "bash" else list(words)
    for one in candidates(given, commands):
        # bash replaces what comes after the last = or : of a word
        print(one[max(given[-1].rfind("="), given[-1].rfind(":")) + 1 :] if shell == "bash" else one)
    return 0


def _split(line: str) -> list[str]:
    """The words of a line after the first; the last one is empty behind a space."""
    try:
        words = shlex.split(line)
    except ValueError:  # a quote that is open
        words = line.split()
    return [*words[1:], *([""] if line[-1:].isspace() or len(words) < 2 else [])]


def candidates(words: Sequence[str], commands: Arguments) -> list[str]:
    """What the last word may become; nothing where a file is meant, which shells complete themselves."""
    *before, word = words
    if not before:
        return [one for one in (*commands, "--help", "--version") if one.startswith(word)]
    if before[0] not in commands:
        return []
    parser = argparse.ArgumentParser()
    commands[before[0]](parser)
    options = {name: action for action in parser._actions for name in action.option_strings}
    if word.startswith("-"):
        return [name for name in options if name.startswith("--" if word != "-" else "-") and name.startswith(word)]
    valued = options.get(before[-1])
    if valued is not None and valued.nargs != 0:
        return [str(one) for one in valued.choices or _named(valued.metavar) if str(one).startswith(word)]
    free = _free(before[1:], options)
    places = [action for action in parser._actions if not action.option_strings]
    place = places[min(len(free), len(places) - 1)] if places else None
    if place is None or (len(free) >= len(places) and place.nargs not in ("*", "+")):
        return []
    return list(_positional(place, free, word))


def _free(words: Sequence[str], options: Mapping[str, argparse.Action]) -> list[str]:
    """Words that are neither options nor their values."""
    found: list[str] = []
    for number, word in enumerate(words):
        owner = options.get(words[number - 1]) if number else None
        if not word.startswith("-") and (owner is None or owner.nargs == 0):
            found.append(word)
    return found


def _positional(place: argparse.Action, free: Sequence[str], word: str) -> Iterator[str]:
    metavar = place.metavar if isinstance(place.metavar, str) else ""
    if place.choices is not None:
        yield from (str(one) for one in place.choices if str(one).startswith(word))
    elif metavar == "OPTION=VALUE":
        from burnish.config.load import context_of
        from burnish.config.names import completed

        recipe = _recipe_of(free)
        given = [one for one in free[1:] if "=" in one]
        yield from completed(context_of(recipe, given), word) if recipe else ()
    else:
        if metavar in ("RECIPE", "SOURCE"):
            yield from (name for name in _recipes() if name.startswith(word))
        if metavar in ("RECIPE", *_RUNS, "FOLDER"):
            yield from _folders(word, recipes=metavar == "RECIPE")


def _recipe_of(free: Sequence[str]) -> str | None:
    """The recipe, or the configuration of the run, that a command line began with."""
    if not free:
        return None
    config = Path(free[0]) / "config.yaml"
    return str(config) if config.is_file() else free[0]


def _named(metavar: object) -> list[str]:
    """Values of an option by what its help calls them."""
    if metavar == "NAME":
        from burnish.evaluation.suite import suite_names

        return suite_names()
    return []


def _recipes() -> list[str]:
    found = (path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))
    return sorted(name for name in found if Path(name).name != "base")


def _folders(word: str, *, recipes: bool) -> Iterator[str]:
    """Folders that are runs or may hold some, and files that are recipes."""
    above, _, start = word.rpartition("/")
    parent = Path(f"{above}/" if "/" in word else ".").expanduser()
    mark = f"{above}/" if "/" in word else ""
    try:
        entries = sorted(parent.iterdir())[:MOST]
    except OSError:
        return
    for entry in entries:
        name = f"{mark}{entry.name}"
        if not entry.name.startswith(start) or entry.name.startswith(".") or not _NAME.fullmatch(entry.name):
            continue
        if entry.is_dir():
            yield name if holds_run(entry) and not recipes else f"{name}/"
        elif recipes and entry.suffix in (".yaml", ".yml"):
            yield name
