"""People are drawn by seed, from real texts and times."""

from itertools import islice

import pytest

from loadtest.people import Person, load_habits, load_trace


@pytest.fixture(scope="module")
def habits():
    return load_habits()


def talk(habits, seed=1, **options):
    return list(Person(habits, seed, **options).conversation())


def test_the_data_is_what_its_page_says(habits):
    assert len(habits.dialogues) == 109
    assert len(habits.reply_tokens) == 314
    assert 60 < habits.gaps_s[len(habits.gaps_s) // 2] < 240  # about two minutes


def test_the_same_seed_says_the_same_and_another_does_not(habits):
    assert talk(habits, 7) == talk(habits, 7) != talk(habits, 8)


def test_no_two_conversations_start_alike(habits):
    person = Person(habits, 1)
    starts = [next(person.conversation()).text for _ in range(500)]
    assert len(set(starts)) == 500


def test_times_are_scaled_and_replies_bounded(habits):
    real, quick = talk(habits), talk(habits, time_scale=0.1)
    for slow, fast in zip(real, quick, strict=True):
        assert fast.think_s == pytest.approx(slow.think_s / 10)
    person = Person(habits, 3, most_tokens=20)
    said = [each for _ in range(50) for each in person.conversation()]
    assert {8, 20} <= {each.max_output_tokens for each in said} <= set(range(8, 21))


def test_documents_are_as_long_as_asked_for(habits):
    person = Person(habits, 1)
    for tokens in (100, 4000):
        assert len(person.document(tokens).split()) == tokens * 3 // 4 + 1
    assert len({person.document(10) for _ in range(20)}) == 20


def test_conversations_go_on_for_ever(habits):
    person = Person(habits, 1)
    assert all(list(person.conversation()) for _ in islice(range(1000), 200))


OWN = (
    '{"t": 0, "session": "a", "input_len": 400, "output_len": 20}\n'
    '{"t": 9, "session": "b", "input_len": 16, "output_len": 1}\n'
    '{"t": 50.5, "session": "a", "input_len": 520, "output_len": 90}\n'
)


def test_m08_with_a_trace_people_talk_as_its_sessions_did(habits, tmp_path):
    (tmp_path / "own.jsonl").write_text(OWN)
    traced = load_trace(tmp_path / "own.jsonl")
    person = Person(habits, 1, time_scale=0.1, most_tokens=64, traced=traced)
    talks = [list(person.conversation()) for _ in range(20)]
    assert {len(one) for one in talks} == {1, 2}
    first, second = next(one for one in talks if len(one) == 2)
    assert len(first.text.split()) == pytest.approx(300, abs=1)  # a token is 3/4 of a word
    assert len(second.text.split()) == pytest.approx(75, abs=1)
    assert (first.max_output_tokens, second.max_output_tokens) == (20, 64)
    assert (first.think_s, second.think_s) == (pytest.approx(5.05), 0)
    assert len({one[0].text for one in talks}) == 20, "no two start alike"


def test_a_conversation_may_open_with_a_document(habits):
    opened = list(Person(habits, 1).conversation(opening_tokens=400))
    assert len(opened[0].text.split()) > 300
    assert all(len(said.text.split()) < 300 for said in opened[1:])
