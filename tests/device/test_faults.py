"""Errors after which only a new process helps are told from those that one turn dies of."""

import pytest
import torch

from engine.device.faults import is_sticky
from engine.errors import DeviceLostError
from engine.ipc.messages import TurnFailed
from tests.fakes.fake_model import FakeModel
from tests.harness.loop import Engine
from tests.laws.law_model import law_model
from tests.model.support import draw, step

STICKY = [
    "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be ...",
    "CUDA error: device-side assert triggered",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(...)`",
]
OTHERS = [
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "CUDA error: invalid configuration argument",
    "CUDA error: no kernel image is available for execution on the device",
    "mat1 and mat2 shapes cannot be multiplied (1x2 and 3x4)",
]


@pytest.mark.parametrize("text", STICKY)
def test_what_breaks_a_context_is_known_by_its_words(text: str) -> None:
    assert is_sticky(RuntimeError(text))
    assert is_sticky(torch.AcceleratorError(text))


@pytest.mark.parametrize("text", OTHERS)
def test_what_breaks_a_step_only_is_not(text: str) -> None:
    assert not is_sticky(RuntimeError(text))


def test_it_is_known_by_the_number_that_torch_tells() -> None:
    error = torch.AcceleratorError("an error in words of another language")
    error.error_code = 710
    assert is_sticky(error)
    error.error_code = 1
    assert not is_sticky(error)


def test_it_is_found_under_what_it_brought_about() -> None:
    error = RuntimeError("while giving back memory")
    error.__context__ = RuntimeError(STICKY[0])
    assert is_sticky(error)


@pytest.mark.parametrize("text", STICKY[:2])
def test_a_runner_tells_that_its_device_is_lost(text: str, monkeypatch) -> None:
    model = law_model()
    runner = model.runner(4)

    def broken(*_args: object, **_named: object) -> None:
        raise torch.AcceleratorError(text)

    monkeypatch.setattr(model.llama, "forward", broken)
    with pytest.raises(DeviceLostError, match="lost to this process: CUDA error"):
        runner.execute([step([1, 2, 3], 0, range(1), sample=draw())])


class Broken(FakeModel):
    """A device that is lost in the third step, or one that fails in it and goes on."""

    error: Exception = DeviceLostError("the device is lost")

    def execute(self, batch: list) -> list[int]:
        if self.steps + 1 >= 3:
            raise self.error
        return super().execute(batch)


def engine_on(error: Exception) -> Engine:
    def build(num_blocks: int, block_size: int) -> Broken:
        model = Broken(num_blocks=num_blocks, block_size=block_size)
        model.error = error
        return model

    return Engine(runner=build, idle_prefill=False, num_speculative_tokens=0)


def test_a_lost_device_ends_the_loop_and_no_turn_is_told_that_it_failed() -> None:
    engine = engine_on(DeviceLostError("the device is lost"))
    engine.open("a")
    turn = engine.submit("a", [1, 2, 3])
    with pytest.raises(DeviceLostError):
        engine.step(10)
    assert engine.ending(turn) is None, "the gateway ends it as engine_restarted"


def test_another_error_fails_its_turns_and_the_loop_goes_on() -> None:
    engine = engine_on(RuntimeError("shapes cannot be multiplied"))
    engine.open("a")
    turn = engine.submit("a", [1, 2, 3])
    engine.run()
    assert isinstance(engine.ending(turn), TurnFailed)
    assert not engine.audit().violations
