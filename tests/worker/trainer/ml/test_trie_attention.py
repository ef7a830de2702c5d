"""Attention in a trie: values and gradients are those of a dense mask, by blocks on a CPU and by FlexAttention."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests.worker.trainer.ml.tries import Sequences, dense_mask, draw_sequences
from worker.trainer.errors import TrainerError
from worker.trainer.trie_attention import attend, build_block_mask, lay_out
from worker.trainer.tries import Trie, pack

N_HEADS, N_KEY_HEADS, WIDTH = 4, 2, 8
SCALING = 0.3
pytestmark = pytest.mark.usefixtures("share_everything")


def draw_inputs(trie: Trie, *, dtype: torch.dtype) -> list[Tensor]:
    """Query, key and value as a model has them: the heads' axis before that of the nodes, but laid out behind it."""
    torch.manual_seed(len(trie.ends))
    heads = (N_HEADS, N_KEY_HEADS, N_KEY_HEADS)
    return [torch.randn(1, len(trie.ends), n, WIDTH, dtype=dtype).transpose(1, 2).requires_grad_() for n in heads]


def by_dense_mask(trie: Trie) -> Callable[..., Tensor]:
    return lambda query, key, value: scaled_dot_product_attention(
        query, key, value, attn_mask=dense_mask(trie), scale=SCALING, enable_gqa=True
    ).transpose(1, 2)


def by_attend(trie: Trie) -> Callable[..., Tensor]:
    return lambda query, key, value: attend(
        SimpleNamespace(), query, key, value, None, scaling=SCALING, trie=lay_out(trie)
    )[0]


def compute(attention: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of a sum that treats each of its numbers differently."""
    output = attention(*inputs)
    weights = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view(output.shape)
    return [output.detach(), *torch.autograd.grad((output * weights).sum(), inputs)]


@settings(deadline=None, max_examples=50)
@given(draw_sequences())
def test_blocks_give_what_a_dense_mask_gives(sequences: Sequences) -> None:
    trie, _ = pack(sequences)
    inputs = draw_inputs(trie, dtype=torch.float64)
    ours, theirs = compute(by_attend(trie), inputs), compute(by_dense_mask(trie), inputs)
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@settings(deadline=None, max_examples=10)
@given(draw_sequences())
def test_flex_attention_gives_what_a_dense_mask_gives(sequences: Sequences) -> None:
    """By torch's own slow form of it, the one that runs on a CPU."""
    trie, _ = pack(sequences)
    inputs = draw_inputs(trie, dtype=torch.float32)
    mask = build_block_mask(trie, is_compiled=False)

    def by_flex(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = flex_attention.flex_attention(
            query, key, value, block_mask=mask, scale=SCALING, enable_gqa=True
        )
        return output.transpose(1, 2)

    with pytest.MonkeyPatch.context() as patch:
        # It refuses gradients on a CPU since the compiled form has none there.
        patch.setattr(flex_attention, "_validate_device", lambda *_: None)
        ours, theirs = compute(by_flex, inputs), compute(by_dense_mask(trie), inputs)
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=1e-5, atol=1e-5)


def test_half_precision_joins_blocks_in_single() -> None:
    trie, _ = pack([(*range(20), *(100 * branch + step for step in range(20))) for branch in range(1, 6)])
    exact = draw_inputs(trie, dtype=torch.float64)
    rough = [tensor.detach().bfloat16().requires_grad_() for tensor in exact]
    for mine, yours in zip(compute(by_attend(trie), rough), compute(by_dense_mask(trie), exact), strict=True):
        assert mine.dtype == torch.bfloat16
        assert (mine - yours).abs().max() < 0.02 * yours.abs().max()


def test_autocast_reaches_it() -> None:
    trie, _ = pack([(1, 2, 3), (1, 2, 4)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert by_attend(trie)(*draw_inputs(trie, dtype=torch.float32)).dtype == torch.bfloat16


def test_without_a_trie_it_is_causal() -> None:
    trie, _ = pack([(1, 2, 3, 4)])
    query, key, value = draw_inputs(trie, dtype=torch.float64)
    module = SimpleNamespace(num_key_value_groups=N_HEADS // N_KEY_HEADS, is_causal=True)
    plain, _ = attend(module, query, key, value, None, scaling=SCALING)
    torch.testing.assert_close(plain, by_dense_mask(trie)(query, key, value))


@pytest.mark.parametrize("setting", ["softcap", "s_aux", "position_bias"])
def test_attention_of_another_kind_is_refused(setting: str) -> None:
    query, key, value = draw_inputs(pack([(1, 2)])[0], dtype=torch.float32)
    changed: dict[str, Any] = {setting: 1.0}
    with pytest.raises(TrainerError, match="cannot be trained"):
        attend(SimpleNamespace(), query, key, value, None, scaling=1.0, **changed)
