"""What losses on responses as units have in common: where the responses come from, and their log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from burnish.algorithms.language.base import LanguageRoles, TokenRole, in_parts
from burnish.language.cost import token_budget_batches
from burnish.options import Positive
from burnish.registry import options
from burnish.rl.algorithm import Algorithm

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.batches.responses import ResponseBatch
    from burnish.types.completion import Completion


@options
class ResponseAlgorithm(Algorithm):
    """Base of those that learn from sampled responses or from given ones."""

    online: bool = True
    """Learn from own responses and their rewards; false learns from the responses in data.train_files."""

    def micro_batches(self, batch: ResponseBatch, size: int) -> Iterator[ResponseBatch]:
        answers = batch.answers
        return (batch.select(rows) for rows in token_budget_batches(answers.trace, size, together=answers.members))

    def size(self, batch: ResponseBatch) -> int:
        return len(batch)


@options
class ReferenceAlgorithm(ResponseAlgorithm):
    """Base of those that compare log-probs with a reference's: log pi - log pi_ref is an implicit reward."""

    beta: Positive = 0.1
    """Strength of the pull to the reference."""
    average_log_prob: bool = False
    """Count the mean log-prob of a response's tokens instead of their sum, so that length counts for nothing."""

    def response_logprob(self, logprob: Tensor, mask: Tensor) -> Tensor:
        """Log-probs of responses, [B], from those of their tokens [B, T]."""
        from burnish.rl.surrogates import masked, sequence_mean

        return sequence_mean(logprob, mask) if self.average_log_prob else masked(logprob, mask).sum(-1)

    def response_logprobs(self, role: TokenRole, trace: Completion, roles: LanguageRoles) -> Tensor:
        """Log-probs of responses under a network, without gradient: [B]."""
        import torch

        if not len(trace):
            return torch.zeros(0)
        (logprob,) = in_parts(lambda part: [role(part).logprob], trace, roles)
        return self.response_logprob(logprob, trace.mask)
