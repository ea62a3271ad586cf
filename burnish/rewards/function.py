"""Python functions and classes of users as rewards."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from burnish.registry import options
from burnish.rewards.base import AnyReward, Compared, Given, Verdict
from burnish.rewards.calling import Call, Half, call_of, compared_by, line_of, place
from burnish.rewards.judging import failed
from burnish.rewards.returned import batch_verdicts, fault, verdict_of
from burnish.utils.errors import UserError
from burnish.utils.user_code import load_object

if TYPE_CHECKING:
    from burnish.types.prompt import Prompt

log = logging.getLogger(__name__)

TOGETHER = 64  # calls about single samples of an async function that wait at a time


@cache
def _tell_form(path: str, form: str) -> None:
    """Say once in what form a function is called, which nothing but the names of its parameters decides."""
    log.warning("reward function %s is called in the form of %s, by its parameters", path, form)


@options
class FunctionReward(AnyReward):
    """Base of rewards that call a function of the user, or an object of a class."""

    higher_is_better: ClassVar[bool] = False  # who knows
    half: ClassVar[Half]  # what is scored
    takes: ClassVar[str]  # parameters that most functions have, for messages

    path: str
    """Where the function or class is: package.module:name, or path/to/file.py:name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of every call; of a class, those that it is made with, once."""

    def __getstate__(self) -> dict[str, Any]:
        """Without what the path leads to, and the object that was made of a class: every process finds its own."""
        return {name: value for name, value in vars(self).items() if name not in ("_found", "_made")}

    @property
    def _thing(self) -> Any:
        """What the path leads to, looked up once: from another folder, to which it may go, it would lead elsewhere."""
        if "_found" not in vars(self):
            vars(self)["_found"] = load_object(self.path, "reward function")
        return vars(self)["_found"]

    @property
    def _callable(self) -> Any:
        """What is called: the function, or the object that the class makes, once in a process."""
        if not isinstance(self._thing, type):
            return self._thing
        if "_made" not in vars(self):
            vars(self)["_made"] = self._thing(**self.arguments)
        return vars(self)["_made"]

    @property
    def _who(self) -> str:
        """For messages."""
        return f"{self.path}{line_of(self._thing)}"

    @property
    def _call(self) -> Call:
        return call_of(self._thing, self.half, self.arguments)

    def asks(self) -> tuple[str, ...]:
        return self._call.inputs

    def compares(self) -> Compared:
        return compared_by(self._thing)

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse a function that can't be imported, or asks for what nobody has; it is not called."""
        call = self._call
        if call.form:
            _tell_form(self.path, call.form)
        _ = self.compares()
        for name in call.required:
            for prompt in prompts:
                if self.judges(prompt) and name not in prompt.info:
                    raise UserError(
                        f"{place(self._thing)} asks for {name!r}, which is no name of Burnish's, is not among the "
                        f"reward's arguments, and is no key of the record of {prompt.name}; its keys are "
                        f"{', '.join(map(repr, prompt.info)) or 'none'}. Correct the parameter, or give it a default"
                    )

    def user_code(self) -> list[str]:
        return [self.path]

    def prepare(self) -> None:
        _ = self._callable

    def score(self, samples: Sequence[Any], prompts: Sequence[Prompt]) -> list[Verdict]:
        return self.score_given(samples, prompts, Given())

    def score_given(self, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> list[Verdict]:
        # an exception goes to the caller, which then scores each sample, or each group, alone
        call, compared = self._call, self.compares()
        if call.style == "single":
            return self._each(call, samples, prompts, given)
        if compared == "samples":
            return self._batch(call, samples, prompts, given, list(range(len(samples))))
        found: dict[int, Verdict] = {}
        for rows in given.groups(prompts):
            if compared == "groups":
                own = self._batch(call, samples, prompts, given, rows)
            else:
                own = _means(rows, ((pair, self._pair(call, samples, prompts, given, list(pair)))
                                    for pair in combinations(rows, 2)), self._who)  # fmt: skip
            found |= dict(zip(rows, own, strict=True))
        return [found[row] for row in range(len(samples))]

    def _batch(
        self, call: Call, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given, rows: Sequence[int]
    ) -> list[Verdict]:
        """The verdicts on some of the samples, by one call."""
        some, asked, own = [samples[row] for row in rows], [prompts[row] for row in rows], given.select(rows)
        found = self._called(call, some, asked, own)
        ids = own.inputs.get("response_ids")
        verdicts = batch_verdicts(found, self._who, None if ids is None else [len(one) for one in ids])
        if len(verdicts) != len(rows):
            return [fault(f"{self._who} returned {len(verdicts)} values for {len(rows)} {self.judged}")] * len(rows)
        return verdicts

    def _pair(
        self, call: Call, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given, rows: Sequence[int]
    ) -> list[Verdict]:
        """The verdicts on two samples: two values; or the chance p that the first is better, for p and 1 - p."""
        some, asked, own = [samples[row] for row in rows], [prompts[row] for row in rows], given.select(rows)
        found = self._called(call, some, asked, own)
        first = verdict_of(found, self._who) if not isinstance(found, list | tuple) else None
        if first is not None and first.value is not None:
            return [first, Verdict(1 - first.value, (), first.note)]
        verdicts = [first, first] if first is not None else batch_verdicts(found, self._who, None)
        if len(verdicts) != 2:
            raise ValueError(f"it returned {len(verdicts)} values for a pair; give two, or the chance of the first")
        return verdicts

    def _called(self, call: Call, samples: list[Any], prompts: list[Prompt], given: Given) -> Any:
        own = {} if isinstance(self._thing, type) else self.arguments
        if call.style == "positional":
            found = self._callable(samples, prompts, **own)
        else:
            found = self._callable(**call.of(samples, prompts, given), **own)
        return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found

    def _each(self, call: Call, samples: Sequence[Any], prompts: Sequence[Prompt], given: Given) -> list[Verdict]:
        """The verdicts of a function that takes one sample; the calls of an async one wait at the same time."""
        own = {} if isinstance(self._thing, type) else self.arguments
        ids = given.inputs.get("response_ids")
        found: list[Any] = []
        for row, (sample, prompt) in enumerate(zip(samples, prompts, strict=True)):
            try:
                found.append(self._callable(**call.one(sample, prompt, given.select([row])), **own))
            except (Exception, SystemExit) as error:
                found.append(failed(error))
        if any(map(inspect.isawaitable, found)):
            found = asyncio.run(_all_awaited(found))
        counts = [None] * len(found) if ids is None else [len(one) for one in ids]
        return [verdict_of(value, self._who, count) for value, count in zip(found, counts, strict=True)]


def _means(rows: Sequence[int], pairs: Iterator[tuple[tuple[int, int], list[Verdict]]], path: str) -> list[Verdict]:
    """The verdict on each sample of a group: the mean over its pairs; missing where no pair has a value."""
    won: dict[int, list[Verdict]] = {row: [] for row in rows}
    for pair, verdicts in pairs:
        for row, verdict in zip(pair, verdicts, strict=True):
            won[row].append(verdict)
    return [_mean(won[row], path) for row in rows]


def _mean(verdicts: Sequence[Verdict], path: str) -> Verdict:
    known = [verdict for verdict in verdicts if verdict.value is not None]
    if not known:
        return verdicts[0] if verdicts else Verdict(None, (), f"{path} compares pairs, and there is no other sample")
    names = dict.fromkeys(name for verdict in known for name in verdict.named)
    named = {name: [verdict.named[name] for verdict in known if name in verdict.named] for name in names}
    return Verdict(
        sum(verdict.value or 0.0 for verdict in known) / len(known),
        named={name: sum(values) / len(values) for name, values in named.items()},
    )


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


async def _all_awaited(found: Sequence[Any]) -> list[Any]:
    """What awaitables give, in order; of one that raises, its verdict."""
    gate = asyncio.Semaphore(TOGETHER)

    async def one(value: Any) -> Any:
        if not inspect.isawaitable(value):
            return value
        async with gate:
            try:
                return await value
            except (Exception, SystemExit) as error:
                return failed(error)

    return list(await asyncio.gather(*map(one, found)))
