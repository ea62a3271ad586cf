"""What a teacher needs before it is asked: the files that it is loaded from, and the prompts that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from burnish.data.values import value_at
from burnish.language.algorithms.base import LanguageNeeds
from burnish.language.model.loading import check_files, load_language_model, read_config
from burnish.language.model.tokenizer import read_tokenizer
from burnish.language.model.universal import LanguageModel
from burnish.options.language import LanguageModelOptions, TokenTeacher
from burnish.types.prompt import Part, Prompt
from burnish.utils.errors import UserError


def privileged(prompt: Prompt, key: str) -> Prompt:
    """A prompt whose last message says what the record has under a key; its images stay.

    Raises:
        UserError: the record has no such text.
    """
    text = value_at(prompt.info, key)
    if not isinstance(text, str) or not text:
        raise UserError(
            f"{prompt.name} has no text under {key}, which a teacher is to read (prompt_key); add it to the record, "
            "and the key to data.extra_keys"
        )
    media = tuple(part for part in prompt.turns[-1].parts if part.kind != "text")
    return _ending(prompt, text, (*media, Part("text", text)))


THOUGHTS = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
HINDSIGHT = 64  # tokens of the words around a solution or feedback, at most


def with_hindsight(prompt: Prompt, solution: str, feedback: str) -> Prompt | None:
    """A prompt that goes on with a solution, or with feedback where there is none; None where there is neither."""
    if solution:
        more = f"\n\nThis is a right answer:\n\n{THOUGHTS.sub('', solution)}"
    elif feedback:
        more = f"\n\nYour last answer was judged as follows:\n\n{feedback}"
    else:
        return None
    more += "\n\nNow answer the question rightly."
    *before, end = prompt.turns[-1].parts
    parts = (*before, Part("text", end.text + more)) if end.kind == "text" else (*before, end, Part("text", more))
    return _ending(prompt, prompt.text + more, parts)


def _ending(prompt: Prompt, text: str, parts: tuple[Part, ...]) -> Prompt:
    """A prompt of another text, whose last message has other parts."""
    *before, last = prompt.turns
    return replace(prompt, text=text, messages=(*before, replace(last, parts=parts)))


def check_teachers(student: LanguageModelOptions, needs: LanguageNeeds, prompts: Sequence[Prompt]) -> None:
    """Refuse teachers that read other tokens, and prompts that no teacher is for, or that lack what a teacher reads.

    Raises:
        UserError: naming the teacher's option, or the first such prompt.
    """
    for number, teacher in enumerate(needs.teachers):
        if teacher.path is not None and not needs.aligned:
            check_tokens(student, teacher, f"algorithm.teachers[{number}]")
    for prompt in prompts if needs.teachers else ():
        own = {i: teacher for i, teacher in enumerate(needs.teachers) if teacher.label in (None, prompt.label)}
        if not own:
            known = ", ".join(sorted({str(teacher.label) for teacher in needs.teachers}))
            raise UserError(
                f"no teacher is for {prompt.name} with label {prompt.label!r}; algorithm.teachers have labels {known}. "
                "Add a teacher with this label, or one without"
            )
        for number, teacher in own.items():
            if teacher.prompt_key is not None:
                privileged(prompt, teacher.prompt_key)
            if teacher.url is not None and prompt.media:
                raise UserError(
                    f"{prompt.name} has an image, a video or a sound, but algorithm.teachers[{number}].url is "
                    f"{teacher.url}, a server that is sent tokens alone; give its directory as path instead of url"
                )


def options_of(student: LanguageModelOptions, teacher: TokenTeacher) -> LanguageModelOptions:
    """How a teacher is loaded: as the student, without what is about training."""
    return replace(
        student, path=str(teacher.path), tokenizer=None, chat_template=None, family="auto", lora=None, freeze=[],
        router_aux_loss_coef=0.0, gradient_checkpointing=False, quantization=None, attention="auto", compile=False,
    )  # fmt: skip


def check_teacher_files(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> None:
    """Refuse a teacher whose directory is incomplete.

    Raises:
        UserError: naming the option.
    """
    with _named(option):
        check_files(options_of(student, teacher))


def check_tokens(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> set[int]:
    """Refuse a teacher that reads other tokens than the student writes.

    Args:
        student: the model that is trained.
        teacher: with a path.
        option: the teacher's option in the configuration.

    Returns:
        Ids of added tokens that mean something else, or nothing, to one of them.

    Raises:
        UserError: a token that no one has added has another id.
    """
    with _named(option):
        theirs = read_tokenizer(read_config(options_of(student, teacher))[0])
    ours = read_tokenizer(read_config(student)[0])
    added = ours.get_added_vocab().keys() | theirs.get_added_vocab().keys()
    mine, other = ours.get_vocab(), theirs.get_vocab()
    plain = [token for token in mine.keys() | other.keys() if token not in added]
    if odd := sorted(token for token in plain if mine.get(token) != other.get(token)):
        shown = ", ".join(f"{token!r} ({mine.get(token)} and {other.get(token)})" for token in odd[:3])
        raise UserError(
            f"{option}.path is {teacher.path}, whose tokenizer is another one: of {len(plain)} tokens {len(odd)} have "
            f"other ids than in model.path, such as {shown}. A teacher has to read the student's tokens: take one of "
            "the same family, compare texts with algorithm=gold, or imitate its responses with algorithm=sft"
        )
    return {number for token in added for number in (mine.get(token), other.get(token))
            if number is not None and mine.get(token) != other.get(token)}  # fmt: skip


def load_teacher(
    student: LanguageModelOptions, teacher: TokenTeacher, option: str, *, aligned: bool
) -> tuple[LanguageModel, set[int]]:
    """A frozen teacher in the precision of the student's forward pass, and the ids that mean something else to it:
    none where texts are compared."""
    unknown = set[int]() if aligned else check_tokens(student, teacher, option)
    with _named(option):
        return load_language_model(options_of(student, teacher), frozen=True), unknown


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Messages about ``model.`` are about a teacher's options."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error).replace("model.", f"{option}.")) from error
