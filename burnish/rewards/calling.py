"""How a user's reward function is called: what it gets is what its parameters are named after."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from burnish.rewards.base import Compared, Given
from burnish.utils.errors import UserError

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

Half = Literal["drawn", "said"]  # what is scored: what a generator draws, or what a language model says
PLURAL = {  # parameters with the values of a batch, and those with the value of one sample
    "images": "image",
    "videos": "video",
    "audios": "audio",
    "responses": "response",
    "latents": "latent",
    "prompts": "prompt",
    "embeddings": "embedding",
    "references": "reference",
    "labels": "label",
    "sources": "source",
}
EITHER = ("condition_images", "response_ids", "ground_truth", "extra_info", "data_source")  # named alike for both
OTHERS = {  # parameters of functions that were written for another library: for one sample, or for a batch
    "solution_str": "single",
    "solution_image": "single",
    "completions": "batch",
    "completion_ids": "batch",
    "metadata": "batch",
    "reward_input": "single",
    "reward_inputs": "batch",
}
SAMPLES = {
    "drawn": ("images", "image", "videos", "video", "audios", "audio", "solution_image"),
    "said": ("responses", "response", "solution_str", "completions", "reward_inputs", "reward_input"),
}
INPUT_OF = {
    "latents": "latents", "latent": "latents", "embeddings": "embeddings", "embedding": "embeddings",
    "response_ids": "response_ids", "completion_ids": "response_ids", "reward_inputs": "response_ids",
    "reward_input": "response_ids",
}  # fmt: skip
READS_RECORD = {"ground_truth", "extra_info", "metadata", "reward_input", "reward_inputs"}
# functions that were written for another library, by parameters that tell them: prompts are texts or messages for these
FORMS = {
    "EasyR1": [{"reward_input"}, {"reward_inputs"}],
    "TRL": [{"completions"}],
    "flow_grpo": [{"images", "prompts", "metadata"}],
    "verl": [{"solution_str"}, {"solution_image"}],
}
ACCEPTED = (
    "(responses, prompts) or (images, prompts) in this order; parameters by name, such as response, reference, label "
    "(docs/own_reward.md); verl's compute_score(data_source, solution_str, ground_truth, extra_info), EasyR1's "
    "compute_score(reward_inputs), TRL's (completions, **kwargs) and flow_grpo's (images, prompts, metadata)"
)
KNOWN = {*PLURAL, *PLURAL.values(), *EITHER, *OTHERS}


@dataclass(frozen=True)
class Call:
    """What a function is called with."""

    style: Literal["positional", "single", "batch"]  # samples and prompts in this order; or by name
    fields: tuple[str, ...] = ()  # of ``KNOWN``
    columns: Mapping[str, Any] | None = None  # keys of the record that it names, with their defaults
    rest: bool = False  # whether it takes all other keys of the record, too

    @property
    def form(self) -> str:
        """The library that it was written for; "" for none."""
        named = {*self.fields}
        return next((library for library, told in FORMS.items() if any(one <= named for one in told)), "")

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it asks for besides samples and prompts, by the names of ``Given.inputs``."""
        return tuple(sorted({INPUT_OF[name] for name in self.fields if name in INPUT_OF}))

    @property
    def required(self) -> list[str]:
        """Keys that every record has to have."""
        return [name for name, default in (self.columns or {}).items() if default is inspect.Parameter.empty]

    def of(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> dict[str, Any]:
        """The arguments of a call about a batch: lists with a value per sample."""
        own = [self._own(prompt) for prompt in prompts]
        parts = [given.select([row]) for row in range(len(samples))]
        found: dict[str, list[Any]] = {
            name: [
                _value(name, sample, prompt, part, keys, self.form)
                for sample, prompt, part, keys in zip(samples, prompts, parts, own, strict=True)
            ]
            for name in self.fields
        }
        for name, default in (self.columns or {}).items():
            instead = None if default is inspect.Parameter.empty else default
            if name in self.required or any(name in keys for keys in own):
                found[name] = [keys.get(name, instead) for keys in own]
        for name in dict.fromkeys(name for keys in own for name in keys) if self.rest else ():
            if name not in found:
                found[name] = [keys.get(name) for keys in own]
        return found

    def one(self, sample: Any, prompt: Prompt, given: Given) -> dict[str, Any]:
        """The arguments of a call about one sample."""
        own = self._own(prompt)
        found = dict(own) if self.rest else {name: own[name] for name in self.columns or {} if name in own}
        return found | {name: _value(name, sample, prompt, given, own, self.form) for name in self.fields}

    def _own(self, prompt: Prompt) -> dict[str, Any]:
        """The user's keys of a record, read anew: what a function changes in them changes no other call."""
        return prompt.info if self.columns or self.rest or {*self.fields} & READS_RECORD else {}


def target_of(thing: Any) -> Any:
    """What is called: a class is made into an object first, whose ``__call__`` it is."""
    return thing.__call__ if isinstance(thing, type) else thing


def compared_by(thing: Any) -> Compared:
    """What a function or class says that it compares: its attribute ``compares``.

    Raises:
        UserError: it says something else.
    """
    said: Any = getattr(thing, "compares", "samples")
    if said not in get_args(Compared):
        raise UserError(f"{place(thing)}: compares is {said!r}; it must be 'samples', 'pairs' or 'groups'")
    compared: Compared = said
    return compared


def call_of(thing: Any, half: Half, arguments: Mapping[str, Any]) -> Call:
    """How to call a function, or an object of a class.

    Args:
        thing: of the user.
        half: what is scored.
        arguments: that every call gets, or that a class is made with.

    Raises:
        UserError: it asks for what nobody has, or doesn't take the arguments.
    """
    made = isinstance(thing, type)
    if made:
        _refuse_uncallable(thing)
        _bind(thing, dict(arguments), "is made by")
    try:
        signature = inspect.signature(target_of(thing))
    except (TypeError, ValueError):  # written in C: only a call can tell
        return Call("positional")
    own = {} if made else dict(arguments)
    parameters = list(signature.parameters.values())[1 if made else 0 :]
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    free = [one for one in named if one.name not in own]
    if not any(one.name in SAMPLES[half] or one.name in INPUT_OF for one in free):
        if wrong := [one.name for one in free if one.name in SAMPLES["said" if half == "drawn" else "drawn"]]:
            raise UserError(_foreign(thing, half, wrong))
        _bind(target_of(thing), own, "is called as", [None] * made, half)
        return Call("positional")
    if only := [one.name for one in parameters if one.kind == one.POSITIONAL_ONLY]:
        raise UserError(f"{place(thing)} takes {only[0]} by its position alone; remove the / from its parameters")
    _bind(target_of(thing), own | {one.name: None for one in free}, "is called as", [None] * made)
    fields = [one.name for one in free if one.name in KNOWN]
    foreign = {*SAMPLES["said"], *SAMPLES["drawn"]} - {*SAMPLES[half]}
    if wrong := [name for name in fields if name in foreign]:
        raise UserError(_foreign(thing, half, wrong))
    if half == "drawn" and (wrong := [name for name in fields if INPUT_OF.get(name) == "response_ids"]):
        raise UserError(f"{place(thing)} asks for {wrong[0]}, which only responses have; leave it out")
    if half == "said" and (wrong := [name for name in fields if INPUT_OF.get(name) in ("latents", "embeddings")]):
        raise UserError(f"{place(thing)} asks for {wrong[0]}, which only what a generator draws has; leave it out")
    columns = {one.name: one.default for one in free if one.name not in KNOWN}
    rest = any(one.kind == one.VAR_KEYWORD for one in parameters)
    return Call(_style(thing, fields), tuple(fields), columns, rest)


def place(thing: Any) -> str:
    """A function or class of the user with its file and line."""
    named = f"reward {'class' if isinstance(thing, type) else 'function'} {getattr(thing, '__name__', thing)}"
    return f"{named}{line_of(thing)}"


def line_of(thing: Any) -> str:
    """Its file and line in brackets, as far as they are known."""
    target = target_of(thing)
    code = getattr(getattr(target, "__func__", target), "__code__", None)
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""


def _refuse_uncallable(kind: type) -> None:
    from burnish.rewards.base import AnyReward

    if issubclass(kind, AnyReward):
        raise UserError(f"{place(kind)} is a reward itself: give its path as name of the reward in place of function")
    if not any("__call__" in vars(one) for one in kind.__mro__):
        raise UserError(f"reward class {kind.__name__} has no __call__, which is called with samples; write one")


def _style(thing: Any, fields: Sequence[str]) -> Literal["single", "batch"]:
    single = [name for name in fields if name in PLURAL.values() or OTHERS.get(name) == "single"]
    batch = [name for name in fields if name in PLURAL or OTHERS.get(name) == "batch"]
    if single and batch:
        raise UserError(
            f"{place(thing)} asks for {batch[0]} of a batch and for {single[0]} of one sample; name all of them for a "
            f"batch ({', '.join(PLURAL)}), or all for one sample"
        )
    if single and (compared := compared_by(thing)) != "samples":
        raise UserError(
            f"{place(thing)} compares {compared}, but asks for {single[0]} of one sample; name its parameters for "
            "several, as in images, responses, prompts"
        )
    return "single" if single else "batch"


def _foreign(thing: Any, half: Half, wrong: Sequence[str]) -> str:
    what = "a generator's samples" if half == "drawn" else "responses"
    return (
        f"{place(thing)} asks for {', '.join(wrong)}, but what it would score are {what}; ask for "
        f"{', '.join(SAMPLES[half][:2])}"
    )


def _bind(
    target: Any, arguments: Mapping[str, Any], how: str, first: Sequence[Any] = (), half: Half | None = None
) -> None:
    """Refuse arguments that a function doesn't take; with a half, samples and prompts come before them."""
    positional: list[Any] = [*first, *([[], []] if half else [])]
    try:
        signature = inspect.signature(target)
    except ValueError:  # a class written in C
        return
    try:
        signature.bind(*positional, **arguments)
    except TypeError as error:
        samples = {"drawn": ["images", "prompts"], "said": ["responses", "prompts"]}.get(half or "", [])
        call = ", ".join([*samples, *(f"{name}=..." for name in arguments)])
        what = "class" if isinstance(target, type) else "function"
        raise UserError(
            f"reward {what} {target.__qualname__}{signature}{line_of(target)} {how} {what}({call}), which it doesn't "
            f"accept: {error}; change its parameters, or the option arguments of the reward. A function takes "
            f"{ACCEPTED}"
        ) from None


def _value(name: str, sample: Any, prompt: Prompt, given: Given, own: Mapping[str, Any], form: str) -> Any:
    """What one sample has under a name of ``KNOWN``; ``own`` are the keys of its record, ``form`` the library's."""
    told = form in ("TRL", "flow_grpo")
    match name:
        case "images" | "image" | "videos" | "video" | "solution_image" | "responses" | "response":
            return sample
        case "audios" | "audio":
            return getattr(sample, "sound", sample)
        case "prompts" | "prompt":
            return (_messages(prompt) if prompt.conversational else prompt.text) if told else prompt
        case "completions":
            text = sample.text
            return [{"role": "assistant", "content": text}] if prompt.conversational else text
        case "solution_str":
            return sample.text
        case "references" | "reference":
            return prompt.answer
        case "ground_truth":
            raw = own.get("reward_model")
            return raw["ground_truth"] if isinstance(raw, dict) and "ground_truth" in raw else prompt.answer
        case "reward_inputs" | "reward_input":
            return {
                "response": sample.text, "response_length": len(given.inputs["response_ids"][0]),
                "ground_truth": _value("ground_truth", sample, prompt, given, own, form),
            }  # fmt: skip
        case "labels" | "label":
            return prompt.label
        case "sources" | "source" | "data_source":
            return prompt.source
        case "extra_info":
            return own.get("extra_info")
        case "metadata":
            return own
        case "condition_images":
            return [media.image() for media in prompt.images]
    return given.inputs[INPUT_OF[name]][0]


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """A conversation as TRL's rewards read it: plain text where a message has nothing else."""
    chat = prompt.chat()
    for message in chat:
        if all(part["type"] == "text" for part in message["content"]):
            message["content"] = "".join(part["text"] for part in message["content"])
    return chat
