"""The tasks that Burnish trains for, and everything that is chosen by them: no other place asks which task it is."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from burnish.config.errors import wrong_choice
from burnish.config.run import RunConfig
from burnish.config.yaml_text import at
from burnish.registry import known, names
from burnish.utils.errors import ConfigError


@dataclass(frozen=True)
class Words:
    """How a report speaks of what was trained."""

    sample: str
    samples: str
    gallery: str  # title of the section that shows some
    trained: str  # what all weights are of
    same: str  # why two samples side by side can be compared
    total: str  # metric that counts samples
    sample_arguments: str  # of ``burnish sample``, as an example
    measures: tuple[str, ...]  # reward components with a name of their own in reports, the strictest first
    exact: str  # what the strictest measure counts


def _drawn(sample: str) -> Words:
    return Words(
        sample=sample,
        samples=f"{sample}s",
        gallery=f"{sample.title()}s",
        trained="the transformer",
        same=f"Each pair of {sample}s began from the same noise.",
        total="perf/total_num_images",
        sample_arguments='"a prompt"',
        measures=("ocr_exact", "border_darkness"),
        exact=f"{sample.title()}s whose text is read exactly right",
    )


DRAWN = {sample: _drawn(sample) for sample in ("image", "clip", "sound")}  # by what a generator draws
FILES = {".png": "image", ".mp4": "clip", ".webp": "clip", ".wav": "sound"}  # what files of samples hold
RESPONSES = Words(
    sample="response",
    samples="responses",
    gallery="Questions and responses",
    trained="the network",
    same="Each pair of responses was drawn with the same random numbers.",
    total="perf/total_num_responses",
    sample_arguments='"a question" --image FILE',
    measures=("exact", "format", "exact_given_format"),
    exact="Questions that are answered right, in the form that was asked for",
)
JUDGEMENTS = replace(
    RESPONSES,
    sample="judgement",
    samples="judgements",
    gallery="Judgements",
    same="Each pair of judgements is on the same responses.",
    measures=("accuracy",),
    exact="Comparisons that are judged as people did",
)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What differs by task. Parts that need torch are imported when they are first used."""

    config_path: str  # module:name, as those below
    words: Words  # of reports and of the opening message
    assembly_path: str
    read_path: str

    @property
    def config(self) -> type[RunConfig]:
        """The class of its configurations."""
        return cast("type[RunConfig]", pkgutil.resolve_name(self.config_path))

    @property
    def read(self) -> Any:
        """What reads files of prompts by the options of the section data."""
        return pkgutil.resolve_name(self.read_path)

    @property
    def assembly(self) -> Any:
        """The class of ``burnish.tasks.Assembly`` that builds a run."""
        return pkgutil.resolve_name(self.assembly_path)


DEFAULT = "text-to-image"
TASKS = {
    DEFAULT: Task(
        config_path="burnish.diffusion.config:FlowConfig",
        words=DRAWN["image"],
        assembly_path="burnish.diffusion.assembly:FlowAssembly",
        read_path="burnish.data.prompts:read_prompts",
    ),
    "image-text-to-text": Task(
        config_path="burnish.language.config:LanguageConfig",
        words=RESPONSES,
        assembly_path="burnish.language.assembly:LanguageAssembly",
        read_path="burnish.data.questions:read_questions",
    ),
    "text-to-image-tokens": Task(
        config_path="burnish.language.config:ImageTokenConfig",
        words=DRAWN["image"],
        assembly_path="burnish.language.image_tokens:ImageTokenAssembly",
        read_path="burnish.data.questions:read_questions",
    ),
}


def task_named(name: Any) -> Task:
    """The task of that name.

    Raises:
        ConfigError: there is no such task.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise ConfigError(wrong_choice("task", name, list(TASKS)))
    return TASKS[name]


def chosen_task(trees: Sequence[Mapping[str, Any]]) -> Any:
    """The task of a run: what its recipes say, or the only one that knows their algorithm and their rewards.

    Args:
        trees: the command line, the recipe, and what it extends, in this order.
    """
    for tree in trees:
        if "task" in tree:
            return tree["task"]
    # plugins of installed packages are opened only where somebody names what is not ours
    for is_there in (lambda kind, name: name in names(kind), known):
        for name, task in TASKS.items():
            if all(is_there(getattr(task.config, kind), used) for kind, used in _used(trees)):
                return name
    return DEFAULT


def _used(trees: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The algorithms and rewards that recipes name, each with the attribute that names its kind."""
    for tree in trees:
        rewards = tree.get("rewards")
        if (name := at(tree, "algorithm", "name")) is not None:
            yield "algorithm_kind", name
        for label, options in rewards.items() if isinstance(rewards, Mapping) else ():
            if options is not None:
                yield "reward_kind", at(options, "name") or label
