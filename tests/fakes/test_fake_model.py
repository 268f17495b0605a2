"""The fake notices the faults that it is there to notice."""

import pytest

from engine.ipc.messages import Sampling
from engine.kv.page_table import PageEntry
from engine.kv.step import SampleAt, SequenceStep
from tests.fakes.fake_model import Draw, FakeModel, InjectedFaultError, expected_reply

IDS = list(range(10, 17))
GREEDY = Sampling(temperature=0)
TABLE = (PageEntry(2, 0, 3, 0), PageEntry(0, 0, 2, 4))


def step(entries: tuple[PageEntry, ...] = TABLE, ids: list[int] = IDS, first: int = 0):
    sample = SampleAt(sampling=GREEDY, output_index=0)
    return SequenceStep(token_ids=ids, first_position=first, entries=entries, sample=sample)


def model() -> FakeModel:
    return FakeModel(num_blocks=8, block_size=4)


def oracle(ids: list[int] = IDS) -> list[int]:
    return expected_reply(ids, draw=Draw(), max_output_tokens=1)


def test_agrees_with_the_oracle_whole_or_in_chunks() -> None:
    assert model().execute([step()]) == oracle()
    chunked = model()
    chunked.execute([step((PageEntry(2, 0, 2, 0),), IDS[:3])])
    assert chunked.execute([step(TABLE, IDS[3:], 3)]) == oracle()


def test_a_wrong_table_changes_the_reply() -> None:
    fake = model()
    fake.execute([step((PageEntry(2, 0, 3, 0), PageEntry(0, 0, 1, 4)), IDS[:6])])
    wrong = (PageEntry(3, 0, 3, 0), PageEntry(0, 0, 2, 4))
    assert fake.execute([step(wrong, IDS[6:], 6)]) != oracle()


def test_a_stale_block_changes_the_reply() -> None:
    fake = model()
    fake.execute([step((PageEntry(2, 0, 3, 0), PageEntry(0, 0, 1, 4)), [9, *IDS[1:6]])])
    assert fake.execute([step(TABLE, IDS[6:], 6)]) != oracle()


def test_a_wrong_position_is_refused() -> None:
    with pytest.raises(AssertionError, match="token 0 at 0"):
        model().execute([step(first=1)])


def test_a_moved_block_changes_the_reply() -> None:
    fake = model()
    fake.execute([step((PageEntry(2, 0, 3, 0), PageEntry(0, 0, 1, 4)), IDS[:6])])
    moved = (PageEntry(2, 0, 3, 8), PageEntry(0, 0, 2, 12))
    assert fake.execute([step(moved, IDS[6:], 14)]) != oracle()


def test_a_copied_block_serves_like_the_original() -> None:
    fake = model()
    fake.execute([step((PageEntry(2, 0, 3, 0), PageEntry(0, 0, 1, 4)), IDS[:6])])
    fake.copy_block(0, 5)
    copied = (PageEntry(2, 0, 3, 0), PageEntry(5, 0, 2, 4))
    assert fake.execute([step(copied, IDS[6:], 6)]) == oracle()


def test_writing_where_another_reads_is_refused() -> None:
    other = (PageEntry(0, 0, 3, 0), PageEntry(4, 0, 0, 4))
    with pytest.raises(AssertionError, match="block 0"):
        model().execute([step(), step(other, [1], 4)])


def test_scripts_faults_and_poison() -> None:
    fake = model()
    fake.script([7])
    fake.fail_at.add(2)
    fake.poison_at.add(3)
    assert fake.execute([step()]) == [7]
    with pytest.raises(InjectedFaultError):
        fake.execute([step()])
    assert fake.execute([step()]) == [-1]
    assert fake.execute([step()]) == [7], "the same turn computed again says the same"


def test_seed_and_output_index_change_what_is_drawn_unless_greedy() -> None:
    def drawn(sampling: Sampling, index: int) -> int:
        return Draw(vocabulary=range(1 << 30)).token(b"s", b"p", sampling, index)

    assert drawn(GREEDY, 0) == drawn(GREEDY, 1)
    seeded = Sampling(temperature=1, seed=1)
    other = Sampling(temperature=1, seed=2)
    assert len({drawn(seeded, 0), drawn(seeded, 1), drawn(other, 0), drawn(GREEDY, 0)}) == 4
