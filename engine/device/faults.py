"""Classifies CUDA errors: those that lose the device, and those that report lack of memory. Pure.

After one of the first kind every later call fails with it, until the process ends: its context
can't be repaired (CUDA Runtime API, "Error Handling": "must be terminated and relaunched"). torch
raises an `AcceleratorError` with the runtime's number; Triton and the libraries have messages only.
"""

_CODES = frozenset(
    {
        46,  # devices unavailable
        214,  # ECC error that could not be corrected
        220,  # the same of NVLink
        700,  # illegal address
        702,  # launch timed out
        710,  # device-side assert
        714,  # hardware stack error
        715,  # illegal instruction
        716,  # misaligned address
        717,  # invalid address space
        718,  # invalid program counter
        719,  # launch failed
        999,  # unknown
    }
)

_WORDS = (
    "illegal memory access",
    "device-side assert",
    "uncorrectable ecc",
    "uncorrectable nvlink",
    "unspecified launch failure",
    "the launch timed out",
    "illegal instruction",
    "misaligned address",
    "hardware stack error",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "cuda-capable device(s) is/are busy or unavailable",
    "cublas_status_execution_failed",
    "cuda error: unknown error",
)

_OUT_OF_MEMORY = 2

# not covered by torch's OutOfMemoryError: memory that CUDA and its libraries take
_SHORTAGES = (
    "cuda out of memory",
    "cuda error: out of memory",
    "triton error [cuda]: out of memory",
    "cublas_status_alloc_failed",
)


def is_sticky(error: BaseException) -> bool:
    """Whether an error, or its cause, makes every later step fail."""
    seen: BaseException | None = error
    while seen is not None:
        text = str(seen).lower()
        if getattr(seen, "error_code", None) in _CODES or any(word in text for word in _WORDS):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def is_shortage(error: BaseException) -> bool:
    """Whether an error reports too little device memory; a smaller step may succeed."""
    text = str(error).lower()
    has_code = getattr(error, "error_code", None) == _OUT_OF_MEMORY
    return has_code or any(words in text for words in _SHORTAGES)
