"""burnish convert: a recipe of what a file of another trainer says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from burnish import __version__
from burnish.config import load
from burnish.config.foreign import MACHINE, OWN_CODE, Conversion, on_one_line, project_of
from burnish.config.foreign_files import read
from burnish.config.foreign_names import projects, trainers
from burnish.config.yaml_text import show
from burnish.utils import terminal
from burnish.utils.disk import write_atomically, writing
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import checked_path

FUNCTIONS_OF = "flow_grpo"  # the project whose configurations are functions
GROUPS = (
    ("lost", "Not carried over:"),
    ("unknown", "Unknown to Burnish; look for a counterpart in burnish config RECIPE:"),
    ("needless", "Nothing to set here:"),
)


def convert(file: str, *, project: str | None = None, output: str | None = None) -> int:
    """Convert a configuration of another trainer to a recipe.

    Reads YAML files, shell scripts and Python files of verl, EasyR1, verl-omni, TRL, OpenRLHF, LightRFT, flow_grpo,
    Flow-Factory and UniRL, as text: nothing in them is run. The recipe says of each line what it is of, and lists every
    option that was not carried over. It is composed, without weights: 2 is returned where that is refused.

    Examples:
        burnish convert run_qwen2_5_vl.sh --output mine.yaml
        burnish convert config/grpo.py:pickscore_sd3              the function of a file with several
        burnish convert config.yaml --from EasyR1

    Args:
        file: a .yaml, .sh or .py file; FILE.py:NAME is a function that returns a configuration
        project (--from PROJECT): whose file it is; without it that is seen by the names of its options
        output (-o, --output FILE): a new .yaml file; without it the recipe is printed
    """
    if project is not None and project not in projects():
        raise UserError(f"--from is {project}; give one of {', '.join(projects())}")
    name, _, function = file.partition(".py:")
    path = checked_path(f"{name}.py" if function else file, "FILE")
    found = read(path, function or None, trainers()[FUNCTIONS_OF].defaults)
    if not found:
        raise UserError(f"{path} holds no options; give a .yaml, .sh or .py file with the options of a run")
    given = max(found, key=len)
    conversion = Conversion(project or project_of(given), given)
    others = sum(map(bool, found)) - 1  # commands of a script that have options, too
    conversion.options = {"output_dir": (f"runs/{path.stem}", "")} | conversion.options
    target = None if output is None else checked_path(output, "--output")
    if target is not None and (target.exists() or target.suffix not in (".yaml", ".yml")):
        raise UserError(f"--output is {output}; give a .yaml file that does not exist yet")
    with TemporaryDirectory() as folder:
        place = target or Path(folder) / f"{path.stem}.yaml"
        text = "\n".join([*_comments(conversion, path, place, others), "", *conversion.lines(), ""])
        with writing(place):
            write_atomically(place, text.encode())
        if target is None:
            print(terminal.printable(text), end="")
        try:
            load(str(place), conversion.words)
        except ConfigError as error:
            raise ConfigError(["the recipe can't be trained yet:", *error.complaints]) from None
    return 0


def _comments(conversion: Conversion, source: Path, place: Path, others: int) -> Iterator[str]:
    """What stands above a recipe of one command, beside which a script has ``others``."""
    yield f"# Converted from {on_one_line(source.name)} of {conversion.project} by Burnish {__version__}."
    machine = [of for name, (_, of) in conversion.options.items() if name in MACHINE]
    of = f"    # {', '.join(machine)}" if machine else ""
    yield f"# {' '.join(['burnish train', on_one_line(place.name), *conversion.words])}{of}"
    if others:
        yield f"# Commands of the file that are left out: {others}. This is the one with the most options."
    if made_up := {
        name.split(".")[1] for name, (_, of) in conversion.options.items() if name.startswith("rewards.") and not of
    }:
        yield f"# The file names no reward: put yours in the place of {', '.join(made_up)} (docs/rewards.md)."
    values = [str(value) for value, _ in conversion.options.values()]
    if any(value.startswith(OWN_CODE) for value in values):
        yield f"# Write the reward functions of {OWN_CODE} first."
    if any("${" in value or "$(" in value for value in values):
        yield "# Values with a $ are variables that the file does not set; put in what they stand for."
    for kind, title in GROUPS:
        by_reason: dict[str, list[str]] = {}
        for name, why in getattr(conversion, kind).items():
            value = on_one_line(show(conversion.stated[name]))
            by_reason.setdefault(why, []).append(f"{conversion.written[name]}={value:.60}")
        if by_reason:
            yield f"#\n# {title}"
        for why, names in by_reason.items():
            yield f"#   {', '.join(names)}{f': {why}' if why else ''}"
