"""What a suite is: a file in YAML that names settings, scorers and sanity checks, and prompts, which are read here."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from burnish.config.checks import problems
from burnish.config.errors import wrong_choice
from burnish.config.load import checked, labelled
from burnish.config.names import Context
from burnish.config.tasks import DEFAULT, TASKS
from burnish.config.yaml_text import merge, nest, parse
from burnish.data.prompts import read_prompts
from burnish.data.questions import read_questions
from burnish.data.sets import SETS, prepared
from burnish.evaluation.sanity_checks import REWARD, SanityCheck
from burnish.options import Count, DenoisingSteps, Guidance, Pixels, Rules, Solver, TemperatureOrGreedy, Tokens
from burnish.options.data import PromptOptions
from burnish.options.language import LanguageDataOptions, SamplingOptions
from burnish.registry import Choice, options
from burnish.rewards.mixing import component_names
from burnish.types.prompt import Part, Prompt
from burnish.utils.errors import ConfigError, UserError
from burnish.utils.reading import read_text

SUITES = Path(__file__).parent / "suites"  # those that ship with Burnish
PINNED = ("version", "prompts", "data", "instruction", "n", "drawing", "responding", "max_prompts")


@options
class Drawing:
    """How a suite samples a generator; what is null is the run's or the model's own, and recorded."""

    num_inference_steps: DenoisingSteps | None = None
    """Denoising steps."""
    guidance_scale: Guidance | None = None
    """Classifier-free guidance scale."""
    solver: Solver | None = None
    """Solver of the steps."""
    height: Pixels | None = None
    """In pixels."""
    width: Pixels | None = None
    """In pixels."""


@options
class Responding(SamplingOptions):
    """How a suite samples a language model."""

    temperature: TemperatureOrGreedy = 0.0
    """Divides the logits; 0 is greedy decoding."""
    max_new_tokens: Tokens | None = None
    """Most tokens of a response; null is the run's own."""


@options
class Suite:
    """An evaluation that has a name."""

    name: str
    """By which results are filed and compared."""
    version: Count = 1
    """Counted up where prompts or settings change; part of the seeds."""
    about: str = ""
    """What it measures, and by whose rules."""
    licence: str = ""
    """Of the prompts."""
    task: str = DEFAULT
    """Which models it is for."""
    prompts: str | list[str]
    """Files, as data.train_files names them; prepared:NAME is what burnish data prepare NAME writes."""
    data: dict[str, Any] = Field(default_factory=dict)
    """How the prompts are read: options of the data section, such as prompt_key."""
    instruction: str = ""
    """What is said behind every question of a language model."""
    n: Count = 1
    """Samples per prompt."""
    max_prompts: Count | None = None
    """A subset of N prompts, chosen by their hashes; null takes all."""
    drawing: Drawing = Field(default_factory=Drawing)
    """Settings of generators."""
    responding: Responding = Field(default_factory=Responding)
    """Settings of language models."""
    scorers: dict[str, Any]
    """Rewards by label, as in a recipe."""
    primary_metric: str = REWARD
    """The column that the suite is about: a scorer's label, one of its further numbers as label_name, or reward, the
    weighted sum."""
    aggregation: Literal["prompts", "tasks"] = "prompts"
    """Whether it is a mean over prompts, or the mean of the means of data sources."""
    alive: str | None = None
    """A column that has to be above 0 somewhere: where it is not, the scorer saw nothing at all."""
    sanity_checks: list[SanityCheck] = Field(default_factory=list)
    """Questions that a broken scorer answers wrongly; asked before anything is sampled."""
    folder: str = ""
    """Where the file is, which paths of prompts are relative to."""
    changed: list[str] = Field(default_factory=list)
    """Options that differ from the suite of this name."""

    @property
    def settings(self) -> dict[str, Any]:
        """How this task is sampled."""
        return asdict(self.responding if self.task != DEFAULT else self.drawing)

    @property
    def noise(self) -> tuple[str, str, int]:
        """The beginning of every seed."""
        return ("suite", self.name, self.version)

    @property
    def title(self) -> str:
        """The name, with a mark where results can't be compared with those of the suite of this name."""
        return f"{self.name} (changed: {', '.join(self.changed)})" if self.changed else self.name

    @property
    def digest(self) -> str:
        """Hash of everything that decides a sample or a score, but for the files of prompts."""
        content = {name: value for name, value in asdict(self).items() if name not in ("about", "licence", "folder")}
        content["scorers"] = {label: (reward.name, asdict(reward)) for label, reward in self.scorers.items()}
        return hashlib.blake2b(json.dumps(content, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()

    def contradictions(self, run: Any) -> Rules:
        """What in it does not go together."""
        columns, draws = [REWARD, *component_names(self.scorers)], self.task == DEFAULT
        other = "responding" if draws else "drawing"
        changed = asdict(getattr(self, other)) != asdict((Responding if draws else Drawing)())
        return [
            *(
                (
                    value not in (None, *columns),
                    f"{option} is {value}, which no scorer reports; the columns are {', '.join(columns)}",
                )
                for option, value in (("primary_metric", self.primary_metric), ("alive", self.alive))
            ),
            *(
                (
                    label not in (REWARD, *self.scorers),
                    f"sanity_checks name the scorer {label}; the scorers are {', '.join(self.scorers)}",
                )
                for check in self.sanity_checks
                for label in check.scorers
            ),
            *(
                ((one.kind != "answers") != draws, f"sanity_checks of kind {one.kind} are not for task {self.task}")
                for one in self.sanity_checks
            ),
            (changed, f"{other} is never read for task {self.task}; remove it"),
            (draws and self.instruction, f"instruction is never read for task {self.task}; remove it"),
            (
                not any(reward.weight for reward in self.scorers.values()),
                "every scorer has weight 0, so that nothing would be scored; give one a weight",
            ),
        ]


@options
class GeneratorSuite(Suite):
    """A suite of generators."""

    algorithm_kind: ClassVar[str] = "flow algorithm"
    reward_kind: ClassVar[str] = "flow reward"

    scorers: dict[str, Annotated[Any, Choice("flow reward")]]
    """Rewards by label, as in a recipe."""


@options
class LanguageSuite(Suite):
    """A suite of language models."""

    algorithm_kind: ClassVar[str] = "language algorithm"
    reward_kind: ClassVar[str] = "language reward"

    scorers: dict[str, Annotated[Any, Choice("language reward")]]
    """Rewards by label, as in a recipe."""


def suite_names() -> list[str]:
    """The suites that ship with Burnish."""
    return sorted(path.stem for path in SUITES.glob("*.yaml"))


def read_suite(named: str, overrides: Mapping[str, Any] | None = None) -> Suite:
    """The suite of a name, or of a file in YAML.

    Args:
        named: one that ships with Burnish, or the path of a file.
        overrides: dotted options that differ, such as ``scorers.geneval.path``.

    Raises:
        UserError: there is no such suite, or something in it is wrong; every problem is named.
    """
    path = SUITES / f"{named}.yaml"
    if named not in suite_names():
        path = Path(named).expanduser()
        if path.suffix not in (".yaml", ".yml"):
            raise UserError(wrong_choice("--suite", named, suite_names()) + ", or the path of a .yaml file")
    try:
        tree = parse(read_text(path))
    except ConfigError as error:
        raise UserError(f"{path}: {error}") from None
    if not isinstance(tree, dict):
        raise UserError(f"{path} is not a suite: it must contain options, such as 'prompts: my.jsonl'")
    given = dict(overrides or {})
    if further := sorted({"folder", "changed"} & tree.keys()):
        raise UserError(f"{path} has {further[0]}, which is not an option of a suite; remove it")
    pinned = [option for option in given if option.partition(".")[0] in PINNED]
    beside = {"folder": str(path.parent.absolute()), "changed": sorted(pinned)}
    tree = merge({"name": path.stem} | tree, nest(given)) | beside
    if tree.get("task", DEFAULT) not in TASKS:
        raise UserError(f"suite {named}: {wrong_choice('task', tree['task'], list(TASKS))}")
    if not tree.get("scorers"):
        raise UserError(f"suite {named} has no scorers; name at least one, as in scorers: {{ocr: {{}}}}")
    tree["scorers"] = labelled({"rewards": tree["scorers"]})["rewards"]  # null removes one
    kind: Any = GeneratorSuite if tree.get("task", DEFAULT) == DEFAULT else LanguageSuite
    suite: Suite = checked(kind, tree, Context([(path.name, tree)], given, tree, kind))
    if wrong := [f"suite {named}: {problem}" for problem in problems(suite, given)]:
        raise UserError("\n".join(wrong))
    return suite


def check_task(suite: Suite, task: str) -> None:
    """Refuse a model that draws where responses are asked for, and the other way around."""
    if suite.task != task:
        raise UserError(
            f"suite {suite.name} is for task {suite.task}, but the model is of task {task}; "
            "give another suite (burnish eval --list)"
        )


def suites_of(config: Any) -> list[Suite]:
    """The suites that validations of a run have, of as many prompts as are used there."""
    most, suites = config.validation.suite_prompts, {}
    for named in config.validation.suites:
        suite = read_suite(named)
        if suite.name in suites:
            raise UserError(f"validation.suites has two suites of the name {suite.name}; give one another name")
        if most is not None and (suite.max_prompts is None or suite.max_prompts > most):
            suite = replace(suite, max_prompts=most, changed=sorted({*suite.changed, "max_prompts"}))
        suites[suite.name] = suite
    return list(suites.values())


PREPARED = "prepared:"  # before the name of a set


def read_suite_prompts(suite: Suite) -> list[Prompt]:
    """The prompts of a suite, in order, each with the suite's instruction behind it.

    Raises:
        UserError: a file can't be read, or has wrong records.
    """
    options = data_options(suite)
    files = [_file(suite, name) for name in ([suite.prompts] if isinstance(suite.prompts, str) else suite.prompts)]
    prompts = read_prompts(files, options) if suite.task == DEFAULT else read_questions(files, options)
    return [_instructed(prompt, suite.instruction) for prompt in chosen(suite, prompts)]


def chosen(suite: Suite, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The subset that the suite asks for: always the same prompts, whatever their order in the file."""
    if suite.max_prompts is None or suite.max_prompts >= len(prompts):
        return list(prompts)
    order = sorted(range(len(prompts)), key=lambda i: (_hash(*suite.noise, prompts[i].uid), i))
    return [prompts[i] for i in sorted(order[: suite.max_prompts])]


def prompts_digest(prompts: Sequence[Prompt]) -> str:
    """Hash of prompts in their order."""
    return _hash(*(prompt.uid for prompt in prompts))


def _hash(*parts: str | int) -> str:
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).hexdigest()


def data_options(suite: Suite) -> Any:
    """How the prompts of a suite are read: options of the data section of its task."""
    kind: Any = PromptOptions if suite.task == DEFAULT else LanguageDataOptions
    # a language model's section names its files, too, which a suite does in its own place
    tree = suite.data if suite.task == DEFAULT else suite.data | {"train_files": "-"}
    where = Context([(f"suite {suite.name}", {})], {}, {}, TASKS[suite.task].config)
    return checked(kind, tree, where, "data")


def _file(suite: Suite, name: str) -> str:
    """A file of a suite, a named set, or a path from the folder of the suite where that is there.

    Raises:
        UserError: the set is not prepared; the message names the command.
    """
    if name.startswith(PREPARED):
        named = name.removeprefix(PREPARED)
        if named not in SETS:
            raise UserError(f"suite {suite.name}: {wrong_choice('prompts', named, list(SETS))}")
        return str(prepared(named))
    beside = Path(suite.folder) / name
    return str(beside) if not Path(name).is_absolute() and beside.exists() else name


def _instructed(prompt: Prompt, instruction: str) -> Prompt:
    if not instruction:
        return prompt
    *before, last = prompt.turns
    message = replace(last, parts=(*last.parts, Part("text", instruction)))
    return replace(prompt, text=prompt.text + instruction, messages=(*before, message))
