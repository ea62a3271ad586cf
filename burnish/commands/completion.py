"""burnish completion: what a shell needs to complete command lines, and what may come next in one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from burnish.commands.verbs import VERBS
from burnish.utils.paths import RECIPES, holds_run

SCRIPTS = {
    "bash": r"""
_burnish_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" one word words
    read -ra words <<< "$line"
    if [[ "$line" == *[[:space:]] ]]; then words+=(""); fi
    word="${words[-1]}" COMPREPLY=()
    # bash replaces what comes after the last = or : of a word
    while IFS= read -r one; do COMPREPLY+=("${one#"${word%"${word##*[=:]}"}"}"); done \
        < <(burnish completion bash -- "${words[@]:1}" 2>/dev/null)
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
MOST = 500  # folders that are offered


def completion(shell: Literal["bash", "zsh", "fish"], words: Sequence[str] = ()) -> int:
    """Complete commands in a shell.

    Examples:
        source <(burnish completion bash)                          in ~/.bashrc
        source <(burnish completion zsh)                           in ~/.zshrc
        burnish completion fish > ~/.config/fish/completions/burnish.fish

    Args:
        shell (SHELL): one of bash, zsh, fish
        words (WORD): what the script asks with: print what may come next
    """
    if not words:
        print(SCRIPTS[shell], end="")
        return 0
    *before, word = words
    if not before:
        every = [*VERBS, "--help", "--version"]
    else:
        every = list(_of_verb(before[0], before[1:], word)) if before[0] in VERBS else []
    for candidate in every:
        if candidate.startswith(word):
            print(candidate)
    return 0


def _of_verb(verb: str, before: Sequence[str], word: str) -> Iterator[str]:
    actions = VERBS[verb].parser(verb)._actions
    flags = {flag: action for action in actions for flag in action.option_strings}
    if word.startswith("-"):
        yield from flags
        return
    # of each word, the flag before it that takes a value
    owners = [None, *(flag if (flag := flags.get(one)) is not None and flag.nargs != 0 else None for one in before)]
    free = [one for one, owner in zip(before, owners, strict=False) if not one.startswith("-") and owner is None]
    places = [action for action in actions if not action.option_strings]
    if owners[-1] is None and len(free) >= len(places) and (not places or places[-1].nargs not in ("*", "+")):
        return
    action = owners[-1] or places[min(len(free), len(places) - 1)]
    if action.choices is not None:
        yield from map(str, action.choices)
    elif action.dest == "overrides" and free:
        from burnish.config.load import context_of
        from burnish.config.names import completed

        saved = Path(free[0]) / "config.yaml"
        recipe = str(saved) if saved.is_file() else free[0]
        yield from completed(context_of(recipe, [one for one in free[1:] if "=" in one]), word)
    elif action.dest == "suite":
        from burnish.evaluation.suite import suite_names

        yield from suite_names()
    elif action.dest in ("recipe", "source", "run", "first", "others", "folder"):
        if action.dest in ("recipe", "source"):
            names = (path.relative_to(RECIPES).with_suffix("").as_posix() for path in RECIPES.rglob("*.yaml"))
            yield from sorted(name for name in names if Path(name).name != "base")
        yield from _folders(word, recipes=action.dest == "recipe")


def _folders(word: str, *, recipes: bool) -> Iterator[str]:
    """Folders that are runs or may hold some, and files that are recipes."""
    above = word[: word.rfind("/") + 1]
    folder = Path(above or ".").expanduser()
    for entry in sorted(folder.iterdir())[:MOST] if folder.is_dir() else ():
        if entry.name.startswith(".") or not _NAME.fullmatch(entry.name):
            continue
        if entry.is_dir():
            yield f"{above}{entry.name}" + ("" if holds_run(entry) and not recipes else "/")
        elif recipes and entry.suffix in (".yaml", ".yml"):
            yield f"{above}{entry.name}"
