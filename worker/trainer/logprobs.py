"""Log-probs and entropies of sampled tokens from a model's logits, in one pass over them.

Written out instead of by log_softmax, which takes several copies of the widest tensor there is and more time than all
the rest behind the layers (decision 20). Axes: R rows with a target, N targets, V vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

from worker.trainer.tries import Targets

CHUNK_SIZES = {"cpu": 2**20, "cuda": 2**26}  # numbers of a chunk: what a core's cache holds; a fraction of a GPU


def token_logprobs(logits: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return log-probs of `targets` and entropies where they were sampled, (N,), in nats at the targets' temperatures.

    logits (R, V), of the targets' nodes. Entropies carry no gradient.
    """
    logprobs, entropies = TokenLogprobs.apply(logits, targets.temperatures, targets.rows, targets.token_ids)
    return logprobs, entropies


class TokenLogprobs(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
    """l_n = x_rn / T - log sum_v exp(x_rv / T), whose gradient is (1[v = n] - p_v) / T. Keeps p, as wide as x."""

    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes by position
        ctx: Any, logits: Tensor, temperatures: Tensor, rows: Tensor, token_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies (N,)."""
        exact = torch.promote_types(logits.dtype, torch.float32)
        temperatures = temperatures.to(exact)
        probabilities = torch.empty_like(logits)
        log_totals, entropies = (torch.empty(len(logits), dtype=exact, device=logits.device) for _ in range(2))
        n_rows = max(1, CHUNK_SIZES[logits.device.type] // logits.shape[1])
        for start in range(0, len(logits), n_rows):
            chunk = slice(start, start + n_rows)
            scaled = logits[chunk].to(exact) / temperatures[chunk, None]
            highest = scaled.amax(-1)
            scaled -= highest[:, None]
            weights = scaled.exp()
            totals = weights.sum(-1)
            probabilities[chunk] = weights.div_(totals[:, None])
            log_totals[chunk] = highest + totals.log()
            entropies[chunk] = totals.log() - torch.linalg.vecdot(weights, scaled)
        ctx.save_for_backward(probabilities, temperatures, rows, token_ids)
        entropies = entropies[rows]
        ctx.mark_non_differentiable(entropies)
        return logits[rows, token_ids].to(exact) / temperatures[rows] - log_totals[rows], entropies

    @staticmethod
    def backward(ctx: Any, grad_logprobs: Tensor, _grad_entropies: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the logits (R, V)."""
        probabilities, temperatures, rows, token_ids = ctx.saved_tensors
        pull = grad_logprobs / temperatures[rows]  # (N,)
        by_row = torch.zeros_like(temperatures).index_add(0, rows, pull)
        grad = probabilities * -by_row[:, None].to(probabilities.dtype)
        grad.index_put_((rows, token_ids), pull.to(grad.dtype), accumulate=True)
        return grad, None, None, None
