"""Attention in which every node of a trie sees itself and its ancestors, as transformers' models call it.

On a GPU it is FlexAttention with a block mask. On a CPU, where that has no backward pass and a dense mask would cost
all T x T, it is made of blocks: what follows a segment lies right behind it, so the segment's keys meet the queries of
its own nodes (causal) and of its followers (no mask): two slices, two calls of torch's own kernel. What a query gets
from several blocks is joined by their log-sum-exps, and backwards each block needs the joint one, as in ring attention
(arXiv 2310.01889). No two nodes meet that do not see each other.

Axes: H heads, T nodes, D dimensions of a head.
"""

from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from worker.trainer.errors import TrainerError
from worker.trainer.tries import Segment, Trie, find_segments

NAME = "trie"  # a model's attn_implementation
UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # what some models' attention is changed by
Layout: TypeAlias = "tuple[Segment, ...] | BlockMask | None"  # None: a single path
Block: TypeAlias = tuple[slice, slice, slice]  # an index: of all heads, some nodes

# What torch's public attention calls on a CPU; that one keeps the log-sum-exp to itself.
_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # noqa: SLF001
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward  # noqa: SLF001


def lay_out(trie: Trie) -> Layout:
    """Return who sees whom, as attention on the trie's device takes it: the model's keyword argument `trie`."""
    is_on_cpu = trie.ends.device.type == "cpu"
    return find_segments(trie) if is_on_cpu else build_block_mask(trie, is_compiled=True)


def build_block_mask(trie: Trie, *, is_compiled: bool) -> BlockMask:
    """Return FlexAttention's mask of `trie`; compiled, it is made without holding all T x T."""
    ends, n_nodes = trie.ends, len(trie.ends)

    def sees(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    return create_block_mask(sees, None, None, n_nodes, n_nodes, device=ends.device, _compile=is_compiled)


def attend(  # noqa: PLR0917  transformers' own order
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    trie: Layout = None,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Return (1, T, H, D) for query (1, H, T, D), key and value of as many heads or fewer.

    Without `trie`: plain causal attention. There is no dropout: log-probs are to be those of the policy that speaks.
    A sliding window is not looked at; no sequence is longer than it (model.max_length).
    """
    if any(settings.get(name) is not None for name in UNSUPPORTED):
        raise TrainerError(f"This model's attention uses one of {', '.join(UNSUPPORTED)}; it cannot be trained here.")
    if trie is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling)
        return output, None
    query, key, value = _cast(query, key, value)
    if isinstance(trie, BlockMask):
        output, _ = flex_attention_forward(module, query, key, value, trie, scaling=scaling)
        return output, None
    n_repeats = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, n_repeats), repeat_kv(value, n_repeats)
    return BlockAttention.apply(query, key, value, trie, scaling).transpose(1, 2), None


def _cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors in autocast's type: unlike torch's attention, neither ours nor FlexAttention does it."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


class BlockAttention(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
    """Attention over the blocks of a trie's segments, on a CPU; all tensors (1, H, T, D).

    Every node is a query of its segment's own block, and of the shared block of each segment above; a segment's nodes
    are keys in these two at most.
    """

    @staticmethod
    def forward(  # noqa: PLR0917  autograd passes by position
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, segments: tuple[Segment, ...], scaling: float
    ) -> Tensor:
        """Return what each query gathers from the values that it sees."""
        shared = _list_shared_blocks(segments)
        output = torch.empty_like(query, dtype=_sum_type(query, shared))
        logsumexp = torch.empty(query.shape[:-1], dtype=torch.promote_types(query.dtype, torch.float32))  # (1, H, T)
        for own in _list_own_blocks(segments):
            output[own], logsumexp[own] = _flash(query[own], key[own], value[own], is_causal=True, scale=scaling)
        for queries, keys in shared:
            part, part_logsumexp = _flash(query[queries], key[keys], value[keys], scale=scaling)
            share = torch.sigmoid(part_logsumexp - logsumexp[queries])
            exact = logsumexp.dtype
            output[queries] = output[queries].to(exact).lerp(part.to(exact), share[..., None])
            logsumexp[queries] = torch.logaddexp(logsumexp[queries], part_logsumexp)
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, output, logsumexp)
        ctx.segments, ctx.scaling = segments, scaling
        return output

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of query, key and value, each the sum over its blocks."""
        query, key, value, output, logsumexp = ctx.saved_tensors

        def differentiate(queries: Block, keys: Block, *, is_causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            parts: tuple[Tensor, Tensor, Tensor] = _flash_backward(
                grad_output[queries],
                query[queries],
                key[keys],
                value[keys],
                output[queries],
                logsumexp[queries],
                0.0,
                is_causal,
                scale=ctx.scaling,
            )
            return parts

        shared = _list_shared_blocks(ctx.segments)
        types = (_sum_type(query, shared), key.dtype, value.dtype)
        grads = [torch.empty_like(query, dtype=each) for each in types]  # of query, key, value
        for own in _list_own_blocks(ctx.segments):
            for grad, part in zip(grads, differentiate(own, own, is_causal=True), strict=True):
                grad[own] = part
        for queries, keys in shared:
            parts = differentiate(queries, keys, is_causal=False)
            for grad, block, part in zip(grads, (queries, keys, keys), parts, strict=True):
                grad[block] += part
        return (*(grad.to(query.dtype) for grad in grads), None, None)


def _list_own_blocks(segments: tuple[Segment, ...]) -> list[Block]:
    """Return the nodes of each segment: among themselves they are causal."""
    return [_block(segment.start, segment.stop) for segment in segments]


def _list_shared_blocks(segments: tuple[Segment, ...]) -> list[tuple[Block, Block]]:
    """Return for each segment with followers these, as queries, and its nodes, as the keys that all of them see."""
    return [
        (_block(segment.stop, segment.end), _block(segment.start, segment.stop))
        for segment in segments
        if segment.stop < segment.end
    ]


def _block(start: int, stop: int) -> Block:
    return slice(None), slice(None), slice(start, stop)


def _sum_type(tensor: Tensor, shared: list[tuple[Block, Block]]) -> Any:
    """Return the type to add up queries' blocks in: single precision at least where some have three or more."""
    spans = [queries[-1] for queries, _ in shared]
    is_nested = any(inner.start < outer.stop for outer, inner in pairwise(spans))
    return torch.promote_types(tensor.dtype, torch.float32) if is_nested else tensor.dtype


AttentionInterface.register(NAME, attend)
