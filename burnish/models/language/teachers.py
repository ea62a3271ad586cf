"""Teachers of a language model: whether one reads the student's tokens, and loading it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from burnish.models.language.loading import check_files, load_language_model, read_config
from burnish.options.language import LanguageModelOptions, TokenTeacher
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.language.model import LanguageModel

SHOWN = 3  # tokens that a message names


def options_of(student: LanguageModelOptions, teacher: TokenTeacher) -> LanguageModelOptions:
    """How a teacher is loaded: as the student, without what is about training."""
    return replace(
        student, path=str(teacher.path), revision=teacher.revision, tokenizer=None, tokenizer_revision=None,
        chat_template=None, family="auto", lora=None, freeze=[],
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
        theirs = _tokenizer(options_of(student, teacher))
    ours = _tokenizer(student)
    added = ours.get_added_vocab().keys() | theirs.get_added_vocab().keys()
    mine, other = ours.get_vocab(), theirs.get_vocab()
    plain = [token for token in mine.keys() | other.keys() if token not in added]
    if odd := sorted(token for token in plain if mine.get(token) != other.get(token)):
        shown = ", ".join(f"{token!r} ({mine.get(token)} and {other.get(token)})" for token in odd[:SHOWN])
        raise UserError(
            f"{option}.path is {teacher.path}, whose tokenizer is another one: of {len(plain)} tokens {len(odd)} have "
            f"other ids than in model.path, such as {shown}. A teacher has to read the student's tokens: take one of "
            "the same family, or imitate its responses with algorithm=sft"
        )
    return {number for token in added for number in (mine.get(token), other.get(token))
            if number is not None and mine.get(token) != other.get(token)}  # fmt: skip


def load_teacher(student: LanguageModelOptions, teacher: TokenTeacher, option: str) -> tuple[LanguageModel, set[int]]:
    """A frozen teacher in the precision of the student's forward pass, and the ids that mean something else to it."""
    unknown = check_tokens(student, teacher, option)
    options = options_of(student, teacher)
    with _named(option):
        return load_language_model(options, frozen=True), unknown


def _tokenizer(options: LanguageModelOptions) -> Any:
    from transformers import AutoTokenizer

    path, _ = read_config(options)
    return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


class _named:
    """Messages about ``model.`` are about a teacher's options."""

    def __init__(self, option: str) -> None:
        self.option = option

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, UserError):
            raise UserError(str(error).replace("model.", f"{self.option}.")) from error
