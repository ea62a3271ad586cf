"""Python functions and classes of users as rewards: what they get is what their parameters are named after."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from statistics import fmean
from typing import Any, ClassVar, get_args

from pydantic import Field

from burnish.registry import options, register
from burnish.rewards.base import NOTHING, AnyReward, Compared, Reward, RewardInputs, Score
from burnish.rewards.calls import failed
from burnish.rewards.text.base import LanguageReward
from burnish.types.prompt import Prompt
from burnish.types.samples import Kind
from burnish.utils.errors import UserError
from burnish.utils.user_code import awaited, load_object

log = logging.getLogger(__name__)

LISTS = ("scores", "rewards")  # keys of a dict about a batch that hold its values
SCORE = ("score", "reward", "overall")  # and of one about a sample; overall is EasyR1's
ANSWER = "pred"  # key of the answer that a response gives: equal ones vote together


@dataclass
class Row:
    """A sample with all that is known of it."""

    sample: Any
    prompt: Prompt
    inputs: Mapping[str, Any]

    @cached_property
    def info(self) -> dict[str, Any]:
        """The user's keys of the record, read anew: what a function changes in them changes no other call."""
        return self.prompt.info


def _ground_truth(row: Row) -> Any:
    raw = row.info.get("reward_model")
    return raw["ground_truth"] if isinstance(raw, dict) and "ground_truth" in raw else row.prompt.answer


VALUES: dict[str, Callable[[Row], Any]] = {  # what a parameter gets of each sample
    "image": lambda row: row.sample,
    "video": lambda row: row.sample,
    "response": lambda row: row.sample,
    "audio": lambda row: getattr(row.sample, "sound", row.sample),
    "prompt": lambda row: row.prompt,
    "reference": lambda row: row.prompt.answer,
    "label": lambda row: row.prompt.label,
    "source": lambda row: row.prompt.source,
    "latent": lambda row: row.inputs["latents"],
    "response_ids": lambda row: row.inputs["response_ids"],
    "condition_images": lambda row: [media.image() for media in row.prompt.images],
    "ground_truth": _ground_truth,
    "extra_info": lambda row: row.info.get("extra_info"),
    "data_source": lambda row: row.prompt.source,
}
EITHER = ("response_ids", "condition_images", "ground_truth", "extra_info", "data_source")  # of a sample, or of all
PLURAL = {f"{name}s": name for name in VALUES if name not in EITHER}
INPUT_OF = {  # what a parameter needs of ``RewardInputs.columns``
    "latents": "latents", "latent": "latents", "response_ids": "response_ids", "completion_ids": "response_ids",
    "reward_inputs": "response_ids", "reward_input": "response_ids",
}  # fmt: skip
DRAWN = {  # what a model has to draw for a function to get what it asks for
    "videos": ("clip",), "video": ("clip",), "audios": ("clip", "sound"), "audio": ("clip", "sound"),
}  # fmt: skip
OF = {  # parameters that only one kind of samples has
    "images": {"images", "image", "videos", "video", "audios", "audio", "solution_image", "latents", "latent"},
    "responses": {"responses", "response", "solution_str", "completions", "completion_ids", "reward_inputs",
                  "reward_input", "response_ids"},
}  # fmt: skip
ACCEPTED = (
    "(responses, prompts) or (images, prompts) in this order; parameters by name, such as response, reference, label "
    "(docs/own_reward.md); verl's compute_score(data_source, solution_str, ground_truth, extra_info), EasyR1's "
    "compute_score(reward_inputs), TRL's (completions, **kwargs) and flow_grpo's (images, prompts, metadata)"
)


def _text_or_messages(row: Row) -> Any:
    """A prompt as TRL's and flow_grpo's rewards read it: messages of a conversation, plain text where that is all."""
    chat = row.prompt.chat() if row.prompt.conversational else []
    for message in chat:
        if all(part["type"] == "text" for part in message["content"]):
            message["content"] = "".join(part["text"] for part in message["content"])
    return chat or row.prompt.text


def _completion(row: Row) -> Any:
    return [{"role": "assistant", "content": row.sample.text}] if row.prompt.conversational else row.sample.text


def _reward_input(row: Row) -> dict[str, Any]:
    return {"response": row.sample.text, "response_length": len(row.inputs["response_ids"]),
            "ground_truth": _ground_truth(row)}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """What a function is called with."""

    single: bool = False  # once for each sample
    values: Mapping[str, Callable[[Row], Any]] = field(default_factory=dict)  # {}: samples and prompts, in this order
    columns: Mapping[str, Any] = field(default_factory=dict)  # keys of the record that it names, with their defaults
    rest: bool = False  # whether it takes all other keys of the record, too
    library: str = ""  # that it was written for

    @property
    def required(self) -> list[str]:
        """Keys that every record has to have."""
        return [name for name, default in self.columns.items() if default is inspect.Parameter.empty]

    def arguments(self, rows: Sequence[Row]) -> dict[str, Any]:
        """Those of a call about a batch: lists with a value per sample."""
        arguments = {name: [value(row) for row in rows] for name, value in self.values.items()}
        columns = dict(self.columns)
        if self.rest:
            columns |= {name: None for row in rows for name in row.info if name not in columns | arguments}
        for name, default in columns.items():
            instead = None if default is inspect.Parameter.empty else default
            if name in self.required or any(name in row.info for row in rows):
                arguments[name] = [row.info.get(name, instead) for row in rows]
        return arguments


# how other libraries call a reward function, by the parameters that tell it
FORMS = (
    ({"solution_str"}, Call(True, {"solution_str": lambda row: row.sample.text}, library="verl")),
    ({"solution_image"}, Call(True, {"solution_image": VALUES["image"]}, library="verl")),
    ({"reward_input"}, Call(True, {"reward_input": _reward_input}, library="EasyR1")),
    ({"reward_inputs"}, Call(False, {"reward_inputs": _reward_input}, library="EasyR1")),
    ({"completions"}, Call(False, {"completions": _completion, "completion_ids": VALUES["response_ids"],
                                   "prompts": _text_or_messages}, library="TRL")),
    ({"images", "prompts", "metadata"}, Call(False, {"prompts": _text_or_messages, "metadata": lambda row: row.info},
                                             library="flow_grpo")),
)  # fmt: skip


def call_of(thing: Any, judged: str, arguments: Mapping[str, Any]) -> Call:
    """How to call a function, or an object of a class.

    Args:
        thing: of the user.
        judged: what is scored: images, or what else a generator draws; or responses.
        arguments: that every call gets, or that a class is made with.

    Raises:
        UserError: it asks for what nobody has, or doesn't take the arguments.
    """
    made = isinstance(thing, type)
    if made:
        if issubclass(thing, AnyReward):
            raise UserError(
                f"{place(thing)} is a reward itself: give its path as name of the reward, not of a function"
            )
        _bind(thing, inspect.signature(thing), "is made as", [], arguments)
    try:
        signature = inspect.signature(thing.__call__ if made else thing)
    except ValueError as error:  # of one written in C
        raise UserError(f"{place(thing)} has no parameters to read: {error}; call it in a function of Python") from None
    parameters, own = list(signature.parameters.values())[made:], {} if made else arguments
    signature = signature.replace(parameters=parameters)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    free = {one.name: one.default for one in parameters if one.kind in by_name and one.name not in own}
    form = next((form for told_by, form in FORMS if told_by <= free.keys()), Call())
    known = {**VALUES, **{name: VALUES[one] for name, one in PLURAL.items()}, **form.values}
    values = {name: known[name] for name in free if name in known}
    if foreign := [name for name in values if name in OF["responses" if judged == "images" else "images"]]:
        raise UserError(f"{place(thing)} asks for {', '.join(foreign)}, but scores {judged}; ask for {judged}")
    if not values.keys() & OF[judged]:
        _bind(thing, signature, "is called as", [judged, "prompts"], own)
        return Call()
    _bind(thing, signature, "is called as", [], {**own, **free})
    rest = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters)
    columns = {name: default for name, default in free.items() if name not in values}
    if form.library:
        return replace(form, values=values, columns=columns, rest=rest)
    several = [f"asks for {name} of a batch" for name in values if name in PLURAL]
    if (compared := compared_by(thing)) != "samples":
        several.append(f"compares {compared}")
    single = [name for name in values if name not in (*PLURAL, *EITHER)]
    if single and several:
        raise UserError(
            f"{place(thing)} {several[0]}, and asks for {single[0]} of one sample; name all of them for a batch "
            f"({', '.join(PLURAL)}), or all for one sample"
        )
    return Call(bool(single), values, columns, rest)


def _bind(
    thing: Any, signature: inspect.Signature, how: str, positional: Sequence[str], named: Mapping[str, Any]
) -> None:
    """Refuse arguments that a function, or a class, doesn't take."""
    try:
        signature.bind(*positional, **named)
    except TypeError as error:
        call = ", ".join([*positional, *(f"{name}=..." for name in named)])
        raise UserError(
            f"{place(thing)} {how} {_name(thing)}({call}), but it has the parameters {signature}: {error}; change "
            f"them, or the option arguments of the reward. A function takes {ACCEPTED}"
        ) from None


def compared_by(thing: Any) -> Compared:
    """What a function or class says that it compares: its attribute ``compares``.

    Raises:
        UserError: it says something else.
    """
    compared: Any = getattr(thing, "compares", "samples")
    if compared not in get_args(Compared):
        raise UserError(f"{place(thing)}: compares is {compared!r}; it must be 'samples', 'pairs' or 'groups'")
    return compared  # type: ignore[no-any-return]


def place(thing: Any) -> str:
    """A function or class of the user with its file and line, as far as they are known."""
    target = thing.__call__ if isinstance(thing, type) else thing
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    line = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"reward {'class' if isinstance(thing, type) else 'function'} {_name(thing)}{line}"


def _name(thing: Any) -> str:
    """Of a function or class; of an object that has none, such as of functools.partial, what it is."""
    return str(getattr(thing, "__name__", thing))


def scores_of(returned: Any, who: str, tokens: Sequence[int | None]) -> list[Score]:
    """Of what a function returned for a batch: a list, a dict of lists, or a list and a dict of further lists.

    Args:
        returned: is to hold a value per sample.
        who: the function, for messages.
        tokens: of each response, where it asked for their ids.

    Raises:
        ValueError, TypeError: it is none of these.
    """
    further: Mapping[str, Any] = {}
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping):
        returned, further = returned
    elif isinstance(returned, Mapping):
        key = next((name for name in (*LISTS, *SCORE) if name in returned), None)
        if key is None:
            keys = ", ".join(map(str, returned))
            raise ValueError(f"it returned a dict without {' or '.join(LISTS)}; its keys are {keys}")
        returned, further = returned[key], {name: values for name, values in returned.items() if name != key}
    if isinstance(returned, Set | str) or not isinstance(returned, Iterable):  # a set has another order
        raise TypeError(f"it returned {returned!r:.100}; return a list with a value for each sample, in their order")
    values = list(returned)
    if len(values) != len(tokens):
        why = f"{who} returned {len(values)} values for {len(tokens)} samples"
        return [Score(None, why, fault=why)] * len(tokens)
    if further:
        columns = zip(values, *further.values(), strict=True)
        values = [dict(zip(("score", *further), row, strict=True)) for row in columns]
    return [score_of(value, who, count) for value, count in zip(values, tokens, strict=True)]


def score_of(value: Any, who: str, tokens: int | None = None) -> Score:
    """Of what was returned for one sample: a number, None, a dict, or a score; a fault where it is none of these.

    A dict has one score; ``steps`` or ``tokens`` that it is made of; further numbers by name; texts as notes; ``pred``.
    """
    if isinstance(value, Score):
        return value
    further = dict(value) if isinstance(value, Mapping) else {"score": value}
    try:
        steps = tuple((int(end), _number(worth, "steps")) for end, worth in further.pop("steps", None) or ())
        each = tuple(_number(worth, "tokens") for worth in further.pop("tokens", None) or ())
        key = next((name for name in SCORE if name in further), "")
        if not (key or steps or each):
            raise ValueError(f"{further!r:.100}; a dict needs one of {' and '.join(SCORE)}")
        if each and tokens != len(each):
            known = "it has to ask for response_ids" if tokens is None else f"the response has {tokens}"
            raise ValueError(f"values for {len(each)} tokens; {known}")
        score = further.pop(key) if key else sum(worth for _, worth in steps) + sum(each)
        notes = {name: text[:500] for name, text in further.items() if isinstance(text, str)}
        numbers = {
            name: _number(number, name) for name, number in further.items() if name not in notes and number is not None
        }
        score = None if score is None else _number(score, key)
    except (TypeError, ValueError) as error:
        why = f"{who} gave {error}"
        return Score(None, why, fault=why)
    note = "; ".join(text if name == "note" else f"{name}: {text}" for name, text in notes.items())
    if score is None:
        return Score(None, f"{who} gave no value" + (f"; {note}" if note else ""))
    answer = None if further.get(ANSWER) is None else str(further[ANSWER]).strip()
    numbers = {str(name): number for name, number in numbers.items() if math.isfinite(number)}
    return Score(score, note, numbers, steps=steps, tokens=each, answer=answer)


def _number(value: Any, name: str) -> float:
    with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):  # RuntimeError: of several values
        if not isinstance(value, str | bytes):
            return float(value)
    raise ValueError(f"{value!r:.100}{'' if name == 'score' else f' as {name!r}'}, which is not a number")


@options
class FunctionReward(AnyReward):
    """Base of rewards that call a function of the user, or an object of a class."""

    higher_is_better: ClassVar[bool] = False  # who knows

    path: str
    """Where the function or class is: package.module:name, or path/to/file.py:name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every call; of a class, those that it is made with, once."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what the path leads to, and the object that was made of a class: every process finds its own."""
        return {name: value for name, value in vars(self).items() if name not in ("_thing", "_callable", "_call")}

    @cached_property
    def _thing(self) -> Any:
        """What the path leads to, looked up once: from another folder, to which it may go, it would lead elsewhere."""
        return load_object(self.path, "reward function")

    @cached_property
    def _callable(self) -> Any:
        """What is called: the function, or the object that the class makes, once in a process."""
        return self._thing(**self.arguments) if isinstance(self._thing, type) else self._thing

    @cached_property
    def _call(self) -> Call:
        return call_of(self._thing, self.judged, self.arguments)

    @cached_property
    def _form(self) -> None:
        """Says once whose form it is called in, where that was found by its parameters."""
        if self._call.library:
            log.warning(
                "reward function %s is called in the form of %s, by its parameters", self.path, self._call.library
            )

    def required_fields(self) -> tuple[str, ...]:
        return tuple(sorted({INPUT_OF[name] for name in self._call.values if name in INPUT_OF}))

    def compares(self) -> Compared:
        return compared_by(self._thing)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse a function that can't be imported, or asks for what nobody has; it is not called."""
        _ = self._form
        self.compares()
        super().check(prompts)
        for name in self._call.required:
            for prompt in prompts:
                if self.applies_to(prompt) and name not in prompt.info:
                    raise UserError(
                        f"{place(self._thing)} asks for {name!r}, which is not a name of Burnish's, is not among the "
                        f"reward's arguments, and is not a key of the record of {prompt.name}; its keys are "
                        f"{', '.join(map(repr, prompt.info)) or 'none'}. Correct the parameter, or give it a default"
                    )

    def user_code(self) -> list[str]:
        return [self.path]

    def prepare(self) -> None:
        _ = self._callable

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt], inputs: RewardInputs = NOTHING) -> list[Score]:
        rows = [
            Row(sample, prompt, {name: values[i] for name, values in inputs.columns.items()})
            for i, (sample, prompt) in enumerate(zip(samples, prompts, strict=True))
        ]
        if self._call.single:
            return self._each(rows)
        compared = self.compares()
        scores: dict[int, Score] = {}
        for group in [range(len(rows))] if compared == "samples" else inputs.groups(prompts):
            own = [rows[row] for row in group]
            scores |= zip(group, self._means(own) if compared == "pairs" else self._batch(own), strict=True)
        return [scores[row] for row in range(len(rows))]

    def _called(self, rows: Sequence[Row]) -> Any:
        """What the function returns for several samples, or for one of itself."""
        own = {} if isinstance(self._thing, type) else self.arguments
        if not self._call.values:
            return self._callable([row.sample for row in rows], [row.prompt for row in rows], **own)
        arguments = self._call.arguments(rows)
        if self._call.single:
            arguments = {name: value for name, (value,) in arguments.items()}
        return self._callable(**arguments, **own)

    def _each(self, rows: Sequence[Row]) -> list[Score]:
        """The scores of a function that takes one sample; the calls of an async one wait at the same time."""
        returned: list[Any] = []
        for row in rows:
            try:
                returned.append(self._called([row]))
            except (Exception, SystemExit) as error:
                returned.append(failed(error))
        if any(map(inspect.isawaitable, returned)):
            returned = awaited(_together(returned))
        who = place(self._thing)
        return [score_of(value, who, length) for value, length in zip(returned, _lengths(rows), strict=True)]

    def _batch(self, rows: Sequence[Row]) -> list[Score]:
        return scores_of(awaited(self._called(rows)), place(self._thing), _lengths(rows))

    def _means(self, rows: Sequence[Row]) -> list[Score]:
        """The scores on a group by comparing each two: means over the pairs; missing where no pair has a value."""
        won: list[list[Score]] = [[] for _ in rows]
        for first, second in combinations(range(len(rows)), 2):
            for row, score in zip((first, second), self._pair([rows[first], rows[second]]), strict=True):
                won[row].append(score)
        alone = Score(None, f"{place(self._thing)} compares pairs, and there is no other sample")
        return [_mean(scores) if scores else alone for scores in won]

    def _pair(self, rows: Sequence[Row]) -> list[Score]:
        """The scores on two samples: two values; or the chance p that the first is better, for p and 1 - p."""
        returned = awaited(self._called(rows))
        if isinstance(returned, list | tuple):
            return scores_of(returned, place(self._thing), [None, None])
        first = score_of(returned, place(self._thing))
        return [first, first if first.value is None else Score(1 - first.value, first.note)]


@register("flow reward", "function")
class Function(FunctionReward, Reward):
    """A function or class of yours, async or not, which gets what its parameters are named after: images, prompts,
    references, latents, condition_images, extra_info, keys of the record (docs/rewards.md).

    It returns a number per sample, None where there is none, or a dict with a score and further values. Of a model
    that draws clips ``images`` are ``burnish.types.samples.Clip``, or the frames that ``frames`` names.
    """

    reads: ClassVar[tuple[Kind, ...]] = ("image", "clip", "sound")

    def refusal(self, drawn: Kind) -> str:
        wrong = [name for name in self._call.values if drawn not in DRAWN.get(name, (drawn,))]
        return (
            f"{place(self._thing)} asks for {wrong[0]}, but the model draws {drawn}s"
            if wrong
            else super().refusal(drawn)
        )


@register("language reward", "function")
class LanguageFunction(FunctionReward, LanguageReward):
    """A function or class of yours, async or not, which gets what its parameters are named after: responses, prompts,
    references, response_ids, extra_info, keys of the record (docs/rewards.md).

    It returns a number per response, None where there is none, or a dict with a score and further values. Functions
    that were written for verl (compute_score) or TRL (completions, **kwargs) work as they are.
    """

    judges_steps: ClassVar[bool | None] = None


def _mean(scores: Sequence[Score]) -> Score:
    known = [score for score in scores if score.value is not None]
    if not known:
        return scores[0]
    numbers = {
        name: fmean(score.numbers[name] for score in known if name in score.numbers)
        for name in dict.fromkeys(name for score in known for name in score.numbers)
    }
    return Score(fmean(score.value or 0.0 for score in known), numbers=numbers)


def _lengths(rows: Sequence[Row]) -> list[int | None]:
    """Of responses, in tokens; None where the function does not ask for them."""
    return [len(row.inputs["response_ids"]) if "response_ids" in row.inputs else None for row in rows]


async def _together(values: Sequence[Any]) -> list[Any]:
    """What calls give, 64 of which are awaited at a time; the score of one that raises takes its place."""
    gate = asyncio.Semaphore(64)

    async def settled(value: Any) -> Any:
        async with gate:
            try:
                return await value if inspect.isawaitable(value) else value
            except (Exception, SystemExit) as error:
                return failed(error)

    return await asyncio.gather(*map(settled, values))
