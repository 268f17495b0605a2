"""Long chats are made of whole dialogues, the same ones for the same seed."""

import json
import random

import pytest

from benchmarks.fidelity.chats import (
    LONGEST_EXCHANGE,
    WORDS,
    ChatPlan,
    Exchange,
    exchanges_of,
    load_chats,
    planted,
)


def words(text):
    return len(text.split())


def turn(role, text):
    return {"role": role, "text": text}


def dialogue(name, language, length=6):
    turns = [
        turn(("user", "assistant")[i % 2], f"{name} {i} one two three") for i in range(2 * length)
    ]
    return {"id": name, "lang": language, "turns": turns}


@pytest.fixture
def folder(tmp_path):
    for language in ("en", "zh"):
        lines = [json.dumps(dialogue(f"{language}{i}", language)) for i in range(5)]
        (tmp_path / f"{language}.jsonl").write_text("\n".join(lines))
    return tmp_path


def plan(**fields):
    return ChatPlan(**({"chats": 6, "tokens": 120, "seed": 1} | fields))


def test_chats_are_long_enough_and_hold_no_dialogue_twice(folder):
    chats = load_chats(folder, plan(), words)
    assert [chat.language for chat in chats] == ["en", "zh"] * 3
    for chat in chats:
        assert len(set(chat.dialogues)) == len(chat.dialogues) == 2
        spoken = [one for one in chat.exchanges if one.fact is None]
        assert sum(words(one.user) + words(one.reply) for one in spoken) >= 120
        assert [one.user.split()[0] for one in spoken] == [
            name for name in chat.dialogues for _ in range(6)
        ]


def test_all_dialogues_are_used_before_one_is_again(folder):
    chats = load_chats(folder, plan(chats=4), words)
    english = [name for chat in chats if chat.language == "en" for name in chat.dialogues]
    assert len(set(english)) == 4


def test_a_seed_says_all(folder):
    assert load_chats(folder, plan(), words) == load_chats(folder, plan(), words)
    assert load_chats(folder, plan(), words) != load_chats(folder, plan(seed=2), words)


def test_more_than_there_is_can_not_be_had(folder):
    with pytest.raises(ValueError, match="1000 tokens are more than"):
        load_chats(folder, plan(tokens=1000), words)


def test_a_folder_without_replies_is_told(tmp_path):
    line = {"id": "a", "lang": "en", "turns": [turn("user", "hello"), turn("user", "hello?")]}
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    with pytest.raises(ValueError, match="no dialogues with replies"):
        load_chats(tmp_path, plan(), words)


def test_only_messages_with_a_reply_of_a_fitting_length_are_played():
    long = "word " * LONGEST_EXCHANGE
    turns = [
        turn("assistant", "welcome"), turn("user", "a"), turn("user", "b"), turn("assistant", "c"),
        turn("user", long), turn("assistant", "d"), turn("user", "e"),
    ]  # fmt: skip
    assert list(exchanges_of(turns, words)) == [Exchange(user="b", reply="c")]


def test_facts_come_at_their_distance_and_are_all_different():
    spoken = [Exchange(user=str(i), reply="") for i in range(2 * len(WORDS))]
    mixed = planted(spoken, 2, random.Random(3))
    assert [one for one in mixed if one.fact is None] == spoken
    places = [place for place, one in enumerate(mixed) if one.fact is not None]
    assert places == list(range(0, len(mixed), 3))
    facts = [one.fact for one in mixed if one.fact is not None]
    assert len({fact.word for fact in facts}) == len({fact.holder for fact in facts}) == len(WORDS)
    assert all(fact.word in fact.told and fact.word in fact.noted for fact in facts)
    assert not any(fact.word in fact.question + fact.answer_start for fact in facts)
