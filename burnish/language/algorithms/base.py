"""What an algorithm for language models may ask for, and whom it may ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from burnish.options.language import TokenTeacher
from burnish.registry import options
from burnish.rl.algorithm import Algorithm, RewardsRead

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.language.roles import LanguageRoles
    from burnish.types.completion import Completion


TokenWeighting = Literal["equal", "probability", "phi"]


@dataclass(frozen=True)
class LanguageNeeds:
    """What the rest of the system provides for an algorithm, and nothing else."""

    # what training files hold
    data: Literal["prompts", "demonstrations", "preferences", "judgements", "comparisons", "scores", "steps"] = (
        "prompts"
    )
    reference: bool = False
    refreshed: bool = False  # the reference is moved to the policy now and then, so it has weights of its own
    critic: bool = False
    groups: bool = True  # compares responses to one prompt, so a prompt needs two at least
    samples: int = 1  # of a prompt that are compared at least
    atom: Literal["response", "pair"] = "response"  # what a loss compares, which nothing may cut
    greedy: bool = False  # a greedy response to each prompt is sampled and scored beside the others
    turn_rewards: bool = False  # rewards of the environment count from their own turn back
    step_rewards: bool = False  # rewards of single steps of a response are compared
    each_reward: bool = False  # rewards are compared one by one, so several have to count
    reads: RewardsRead = field(default_factory=dict)
    heads: tuple[str, ...] = ()  # scalar heads of a reward model, by name: it is trained, and nothing is sampled
    ties: bool = False  # comparisons may have no winner
    shares: bool = False  # scores and labels of steps are from 0 to 1
    separator: str = ""  # between the steps of a response that are judged one by one
    question: str = ""  # what is asked about images that are judged in place of responses
    imitates: TokenWeighting | None = None  # responses beside (section supervised), their tokens weighted so
    teachers: tuple[TokenTeacher, ...] = ()  # frozen networks to learn from
    aligned: bool = False  # teachers with a path may have another tokenizer: spans of text are compared
    logprobs: bool = False  # responses that are given with scores have those of the policy that wrote them

    def to_sample(self) -> LanguageNeeds:
        """What of it sampling needs: no network but the policy."""
        return replace(self, reference=False, refreshed=False, critic=False, teachers=())


@options
class RowsOfResponses(Algorithm):
    """Base of those that learn from rows of one or more responses, which no micro-batch parts."""

    def micro_batches(self, batch: Any, size: int) -> Iterator[Any]:
        answers = batch.answers
        return (batch.select(rows) for rows in token_budget_batches(answers.trace, size, together=answers.members))

    def size(self, batch: Any) -> int:
        return len(batch)


def in_parts(
    function: Callable[[list[int]], Sequence[Tensor]], trace: Completion, roles: LanguageRoles
) -> list[Tensor]:
    """Tensors [B, T] that ``function`` makes of the rows of micro-batches of tokens, without gradients, joined again.

    The micro-batches are shared out among the ranks, and all ranks get all of them.
    """
    import torch

    with torch.no_grad():
        batches = list(token_budget_batches(trace, roles.micro_batch_size))
        parts = roles.distribute(lambda rows: [value.cpu() for value in function(rows)], batches)
    order = torch.tensor([row for some in batches for row in some]).argsort()
    return [torch.cat(list(column))[order] for column in zip(*parts, strict=True)]


def token_budget_batches(completion: Completion, budget: int, *, together: int = 1) -> Iterator[list[int]]:
    """Rows of micro-batches of at most ``budget`` tokens; responses of one prompt stay together if they fit.

    A prompt counts once per micro-batch. A response that exceeds the budget with its prompt gets a micro-batch of its
    own.

    Args:
        completion: [B * M] responses.
        budget: tokens, prompts included.
        together: M, the number of responses per row, all to one prompt.
    """
    lengths = completion.prompts.table.lengths
    index = completion.prompts.index[::together].tolist()
    responses = completion.length.view(-1, together).sum(1).tolist()
    groups: dict[int, list[int]] = {}
    for row, prompt in enumerate(index):
        groups.setdefault(prompt, []).append(row)
    batch: list[int] = []
    used = 0
    for prompt, rows in groups.items():
        total = lengths[prompt] + sum(responses[row] for row in rows)
        if batch and used + total > budget and total <= budget:
            yield batch
            batch, used = [], 0
        before = lengths[prompt]  # tokens of the prompt that this micro-batch does not hold yet
        for row in rows:
            if batch and used + before + responses[row] > budget:
                yield batch
                batch, used, before = [], 0, lengths[prompt]
            batch.append(row)
            used, before = used + before + responses[row], 0
    if batch:
        yield batch
