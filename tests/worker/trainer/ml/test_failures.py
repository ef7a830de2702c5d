"""torch's own errors for want of memory are recognised."""

import pytest
import torch

from worker.trainer.failures import CPU_ALLOCATOR, describe_error


def test_the_error_of_a_full_gpu_is_known_by_its_name() -> None:
    assert describe_error(torch.OutOfMemoryError("CUDA out of memory.")).startswith("Out of memory on the GPU")


def test_the_error_of_full_memory_is_known_by_its_words() -> None:
    with pytest.raises(RuntimeError, match=CPU_ALLOCATOR) as caught:
        torch.empty(2**55)
    assert describe_error(caught.value).startswith("Out of memory: ")
