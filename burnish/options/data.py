"""Options of data that both tasks share: how records become prompts, and in which order they are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from burnish.options import Count, Finite, Positive, Rules, Whole
from burnish.registry import MayChange, ReadIf, options

if TYPE_CHECKING:
    from burnish.config.run import RunConfig

INPUTS = (
    "mask_image", "control_image", "last_image", "reference_image", "ip_adapter_image", "video", "control_video",
    "mask_video",
)  # fmt: skip
Epochs = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


@options
class RecordOptions:
    """What is made of a record, and under which keys it has what."""

    template: str | None = None
    """Jinja template of the question's text, or a file of one (.jinja, .txt): the record's keys are its variables, and
    content is the text that the record has as its question. It runs in a sandbox. null takes that text as it is."""
    media_folder: str | None = None
    """Folder that relative paths of images, videos and sounds begin at; null is the folder of the file."""
    prompt_key: str | None = None
    """Key of the prompt or question, text or chat messages; null looks for prompt, text, caption, messages, and for
    language models also for question, problem, query. Dots lead into nested objects (extra_info.question)."""
    images_key: str | None = None
    """Key of the images that a prompt begins from (editing, image to video) or that a question is about; null looks
    for images and image."""
    answer_key: str | None = None
    """Key of the right answer; null looks for answer, ground_truth, target, reward_model.ground_truth, and for language
    models also for solution, reference."""
    label_key: str | None = None
    """Key of a label that chooses or weights the rewards of a prompt; null reads label where that is text."""
    extra_keys: list[str] = Field(default_factory=lambda: ["extra_info"])
    """Keys that are part of what a prompt is, and so of its seeds. Rewards read these and all others as prompt.info."""


@options
class OrderOptions:
    """Which records are drawn, and in which order."""

    train_files: str | list[str]
    """Training records."""
    val_files: str | list[str] | None = None
    """Records for validation; null validates on the training records, with a warning."""
    scores: dict[str, Finite] | None = None
    """Scores that the records have beside a finished sample (image or response), by their keys, each with its weight in
    the reward; one of weight 0 is logged. These samples are learned from in place of own ones, those of a prompt as a
    group. null samples."""
    train_max_samples: Count | None = None
    """Train on N of the records: drawn by the seed with shuffle, else the first ones; null takes all."""
    mix: list[Positive] | None = None
    """One weight for each entry of train_files: the shares in which records are drawn from them, each in an order of
    its own and from its beginning again when it is through; null takes the lists one after another as one."""
    sampler: str | None = None
    """Code of yours that chooses the records of every batch, by what was rewarded so far: file.py:function, or
    package.module:function; null takes each once an epoch."""
    epochs: Annotated[Epochs | None, MayChange()] = None
    """Passes over the training records, which decide steps; null takes steps as it is given."""

    shuffle: Annotated[
        bool,
        ReadIf(
            lambda section, run: section.sampler is None or section.train_max_samples is not None,
            why="data.sampler chooses the records",
        ),
    ] = True
    """Shuffle the records anew every epoch; false keeps their order."""

    def contradictions(self, run: RunConfig) -> Rules:
        entries = [self.train_files] if isinstance(self.train_files, str) else self.train_files
        weights = len(self.mix or [])
        return [
            (
                self.mix is not None and self.sampler is not None,
                "data.mix and data.sampler both say which records come next; leave one of them out",
            ),
            (
                self.mix is not None and (weights != len(entries) or weights < 2),
                f"data.mix has {weights} weights, but data.train_files has {len(entries)} entries; give one for each "
                "of several, or leave data.mix out",
            ),
        ]


@options
class PromptOptions(RecordOptions):
    """What is made of a record for a generator."""

    input_keys: list[str] = Field(default_factory=lambda: list(INPUTS))
    """Keys of further images and videos (those with video in their names), each given to the pipeline as the argument
    of that name."""


@options
class FilterOptions:
    """Dynamic sampling (DAPO): drop prompts whose group has no reward signal."""

    max_num_gen_batches: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Most batches sampled until data.train_batch_size prompts remain; 1 replaces none. An update with no prompts
    left is skipped."""
    replay_buffer: Whole = 0
    """Groups of earlier updates that are kept, the newest: some of them take the places of those that are still
    missing, drawn by the standard deviation of their rewards (TRL's GRPO with a replay buffer). 0 keeps none."""
