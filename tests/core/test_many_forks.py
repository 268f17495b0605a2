"""Thousands of forks of one conversation share its blocks, and give back what they took."""

from tests.fakes.fake_model import expected_reply
from tests.harness.loop import CLOSE

FORKS = 5000
PARENT = 200  # tokens: 12 whole blocks, and one that each fork copies when it writes


def test_5000_forks_share_one_parent(make_engine) -> None:
    engine = make_engine(num_blocks=2 * FORKS + 64, max_num_seqs=64, idle_prefill=False)
    engine.open("parent")
    ids = [7] * PARENT
    kept = engine.kept(engine.turn("parent", ids, max_output_tokens=8, stop_ids=[]))
    parent = [*ids, *kept]
    forks = [f"f{number}" for number in range(FORKS)]
    for name in forks:
        engine.fork(name, "parent", len(parent))
    computed = PARENT + 8 - 1
    assert engine.stats().active_blocks == -(-computed // 16), "nothing is copied yet"
    turns = [
        engine.submit(name, [number % 250 + 1], max_output_tokens=2, stop_ids=[])
        for number, name in enumerate(forks)
    ][: engine.config.max_num_waiting]
    engine.run()
    for number, turn in enumerate(turns):
        right = expected_reply(
            [*parent, number % 250 + 1], draw=engine.draw, max_output_tokens=2, stop_ids=()
        )
        assert engine.kept(turn) == [*right, *CLOSE]
    shared = len(parent) // 16
    assert engine.stats().active_blocks <= shared + 2 * FORKS
    engine.check()
    engine.close("parent")
    engine.check()
    for name in reversed(forks):
        engine.close(name)
    engine.check()
    assert engine.stats().active_blocks == 0
