"""How many threads run a step, on machines whose cores come and go."""

from hypothesis import given
from hypothesis import strategies as st

from engine.model.native import ThreadCountController

WORK_S = 0.004  # CPU time of a step


def run(controller, *, free, steps):
    """Steps on a machine with `free` cores and others that are shared; threads of each."""
    ran = []
    for _ in range(steps):
        threads = controller.threads
        ran.append(threads)
        if threads <= free:
            controller.note(wall_s=WORK_S / threads, cpu_s=WORK_S, waiting_s=0.0)
        else:  # a thread has half a core, and all wait for it four fifths of the time
            wall_s = 10 * WORK_S / threads
            cpu_s = wall_s * (free + (threads - free) / 2)
            controller.note(wall_s=wall_s, cpu_s=cpu_s, waiting_s=max(cpu_s - WORK_S, 0.0))
    return ran


def test_free_cores_are_all_used():
    for most in (1, 2, 16):
        assert set(run(ThreadCountController(most), free=most, steps=2000)) == {most}


def test_a_hiccup_changes_nothing():
    controller = ThreadCountController(2)
    run(controller, free=2, steps=9)
    controller.note(wall_s=0.007, cpu_s=0.009, waiting_s=0.005)  # late by 5 ms, once
    assert set(run(controller, free=2, steps=1000)) == {2}


def test_a_thread_whose_core_is_shared_is_left_out():
    controller = ThreadCountController(2)
    run(controller, free=1, steps=4)
    assert controller.threads == 1


def test_only_as_many_as_have_lost_their_cores_are_left_out():
    controller = ThreadCountController(8)
    ran = run(controller, free=6, steps=3000)
    assert sum(threads == 6 for threads in ran) > 0.9 * len(ran)


def test_looks_get_rare_while_cores_stay_shared():
    controller = ThreadCountController(2)
    run(controller, free=1, steps=1000)
    ran = run(controller, free=1, steps=10_000)
    assert 0 < sum(threads == 2 for threads in ran) < 0.01 * len(ran)


def test_cores_that_are_free_again_are_used_again():
    controller = ThreadCountController(4)
    run(controller, free=0, steps=10_000)
    run(controller, free=4, steps=4000)
    assert set(run(controller, free=4, steps=1000)) == {4}


def test_work_that_scales_badly_keeps_its_threads_on_free_cores():
    """Waits below what counts as late are no reason: there is nobody to give the core to."""
    controller = ThreadCountController(2)
    for _ in range(1000):
        controller.note(wall_s=0.003, cpu_s=0.006, waiting_s=0.001)
    assert controller.threads == 2


SECONDS = st.floats(0, 1)


@given(most=st.integers(1, 5), steps=st.lists(st.tuples(SECONDS, SECONDS, SECONDS), max_size=200))
def test_whatever_is_measured_there_is_a_thread_and_not_more_than_there_are(most, steps):
    controller = ThreadCountController(most)
    for wall_s, cpu_s, waiting_s in steps:
        controller.note(wall_s=wall_s, cpu_s=cpu_s, waiting_s=waiting_s)
        assert 1 <= controller.threads <= most
