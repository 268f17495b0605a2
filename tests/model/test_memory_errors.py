import pytest
import torch

from engine.model.runner import memory_errors


def too_much() -> torch.Tensor:
    return torch.empty(2**60, dtype=torch.uint8)


def test_what_torch_says_of_a_lack_of_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="allocate"), memory_errors():
        too_much()
    with pytest.raises(MemoryError, match="CUDA"), memory_errors():
        raise torch.OutOfMemoryError("CUDA out of memory")


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_errors():
        raise RuntimeError("the shape is wrong")


def test_memory_that_cuda_itself_lacks_is_a_memory_error_too() -> None:
    with pytest.raises(MemoryError, match="ALLOC_FAILED"), memory_errors():
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
    with pytest.raises(MemoryError, match="Triton"), memory_errors():
        raise RuntimeError("Triton Error [CUDA]: out of memory")
