"""Whole characters, held-back stop strings, and the ids that a cut reply keeps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.text.detokenize import TextStream


class Pieces:
    """A toy vocabulary: id i stands for pieces[i]; text is encoded one id per byte (256 + byte)."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id - 256]) if token_id >= 256 else self.pieces[token_id]

    def encode(self, text: str) -> list[int]:
        return [256 + byte for byte in text.encode()]

    def bytes_of(self, ids: list[int]) -> bytes:
        return b"".join(self.token_bytes(i) for i in ids)

    def stream(self, *stop: str) -> TextStream:
        return TextStream(self.token_bytes, self.encode, stop)

    def push_all(self, stream: TextStream) -> list[str]:
        deltas = []
        for token_id in range(len(self.pieces)):
            deltas.append(stream.push(token_id))
            if stream.stopped:
                break
        return deltas


def cut_at_first_stop(text: str, stops: tuple[str, ...]) -> str:
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


def test_stop_string_spread_over_pieces_sends_nothing_of_it():
    """Field case T55: vllm#3574, TGI#1254."""
    vocabulary = Pieces(b"DEF", b"G", b"HI", b"J")
    stream = vocabulary.stream("DEFGHIJ")
    assert vocabulary.push_all(stream) == ["", "", "", ""]
    assert stream.stopped
    assert (stream.text, stream.kept_ids) == ("", [])


def test_held_text_is_flushed_when_the_reply_ends_without_the_stop_string():
    """Field case T55: koboldcpp#1031."""
    vocabulary = Pieces(b"say DEF", b"G")
    stream = vocabulary.stream("DEFGHIJ")
    assert vocabulary.push_all(stream) == ["say ", ""]
    assert stream.finish() == "DEFG"
    assert not stream.stopped
    assert stream.kept_ids == [0, 1]


def test_held_text_is_dropped_when_the_reply_is_cut():
    vocabulary = Pieces(b"say ", b"DEF", b"G")
    stream = vocabulary.stream("DEFGHIJ")
    vocabulary.push_all(stream)
    stream.cut()
    assert (stream.finish(), stream.text, stream.kept_ids) == ("", "say ", [0])


def test_emoji_over_four_ids_is_one_clean_delta():
    """Field case T56: vllm-mlx#109."""
    vocabulary = Pieces(*(bytes([byte]) for byte in "🦙".encode()))
    stream = vocabulary.stream()
    assert vocabulary.push_all(stream) == ["", "", "", "🦙"]
    assert stream.kept_ids == [0, 1, 2, 3]


def test_reply_after_a_prompt_that_ends_inside_a_character_does_not_echo_the_prompt():
    """Field case T56: vllm#48853. The prompt's half character is not the reply's to complete."""
    vocabulary = Pieces("🦙".encode()[2:], b"ok")
    stream = vocabulary.stream()
    assert "".join(vocabulary.push_all(stream)) + stream.finish() == "\ufffd\ufffdok"


def test_half_a_character_is_not_kept_by_a_cut_reply():
    vocabulary = Pieces(b"hi", "é".encode()[:1])
    stream = vocabulary.stream()
    assert vocabulary.push_all(stream) == ["hi", ""]
    stream.cut()
    assert stream.kept_ids == [0]


def test_half_a_character_at_the_limit_becomes_the_replacement_character():
    vocabulary = Pieces(b"hi", "é".encode()[:1])
    stream = vocabulary.stream()
    vocabulary.push_all(stream)
    assert stream.finish() == "\ufffd"
    assert stream.kept_ids == [0, 1]


def test_part_of_an_id_that_was_sent_is_encoded_anew():
    vocabulary = Pieces(b"one", b" twoEND", b"never")
    stream = vocabulary.stream("END")
    assert vocabulary.push_all(stream) == ["one", " two"]
    assert stream.kept_ids == [0, *vocabulary.encode(" two")]


def test_part_that_begins_inside_a_character_is_encoded_from_that_character_on():
    llama = "🦙".encode()
    vocabulary = Pieces(b"a", llama[:2], llama[2:] + b"END")
    stream = vocabulary.stream("END")
    assert "".join(vocabulary.push_all(stream)) == "a🦙"
    assert stream.kept_ids == [0, *vocabulary.encode("🦙")]


def test_ids_without_text_stay_where_they_stand():
    vocabulary = Pieces(b"a", b"", b"bEND")
    stream = vocabulary.stream("END")
    vocabulary.push_all(stream)
    assert stream.kept_ids == [0, 1, *vocabulary.encode("b")]


def test_stop_string_that_is_complete_first_wins_over_one_that_began_earlier():
    vocabulary = Pieces(b"xab", b"yz")
    stream = vocabulary.stream("xabyz", "ab")
    assert vocabulary.push_all(stream) == ["x"]


def test_of_stop_strings_that_end_together_the_longest_wins():
    stream = (vocabulary := Pieces(b"1, 2\n\nand")).stream("\n", "2\n")
    assert vocabulary.push_all(stream) == ["1, "]


def test_stop_string_is_found_at_its_second_start_inside_its_own_repetition():
    vocabulary = Pieces(b"aab", b"aab", b"aac")
    stream = vocabulary.stream("aabaac")
    assert vocabulary.push_all(stream) == ["", "aab", ""]
    assert stream.stopped


def test_empty_stop_string_never_stops():
    stream = (vocabulary := Pieces(b"a")).stream("")
    assert vocabulary.push_all(stream) == ["a"]


def test_ending_is_once_and_pushing_after_it_is_an_error():
    stream = Pieces(b"a").stream()
    stream.push(0)
    assert (stream.finish(), stream.finish()) == ("", "")
    with pytest.raises(RuntimeError, match="after the reply's end"):
        stream.push(0)


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=4),
        st.sampled_from(
            [b"a", b"ab", b"ba", b"", "é".encode(), "🦙".encode()[:2], "🦙".encode()[2:], b"\xff"]
        ),
        st.text(alphabet="abé🦙\ufffd", max_size=4).map(str.encode),
    ),
    max_size=20,
)
STOPS = st.lists(st.text(alphabet="abé🦙\ufffd", max_size=4), max_size=3).map(tuple)


@settings(max_examples=600, deadline=None)
@given(pieces=PIECES, stops=STOPS)
def test_deltas_are_the_decoding_cut_at_the_first_stop(pieces, stops):
    vocabulary = Pieces(*pieces)
    stream = vocabulary.stream(*stops)
    deltas = [*vocabulary.push_all(stream), stream.finish()]
    whole = b"".join(pieces).decode(errors="replace")
    assert "".join(deltas) == stream.text == cut_at_first_stop(whole, stops)
    assert stream.stopped == (cut_at_first_stop(whole, stops) != whole)
    kept = stream.kept_ids
    if not stream.stopped:
        assert kept == list(range(len(pieces)))
    assert vocabulary.bytes_of(kept).decode(errors="replace") == stream.text


@settings(max_examples=600, deadline=None)
@given(pieces=PIECES, stops=STOPS, count=st.integers(0, 20))
def test_ids_kept_by_a_cut_reply_are_exactly_the_text_sent(pieces, stops, count):
    vocabulary = Pieces(*pieces[:count])
    stream = vocabulary.stream(*stops)
    sent = "".join(vocabulary.push_all(stream))
    stream.cut()
    kept = stream.kept_ids
    assert vocabulary.bytes_of(kept).decode(errors="replace") == sent == stream.text
    own = [token_id for token_id in kept if token_id < 256]
    assert own == list(range(len(own)))
    for longer in range(len(own) + 1, len(vocabulary.pieces) + 1):
        assert not is_whole_text_within(vocabulary.bytes_of(list(range(longer))), sent)


def is_whole_text_within(data: bytes, text: str) -> bool:
    try:
        return text.startswith(data.decode())
    except UnicodeDecodeError:
        return False


@settings(max_examples=300, deadline=None)
@given(pieces=PIECES, stops=STOPS)
def test_no_delta_is_taken_back_or_comes_early(pieces, stops):
    """Each push sends all that no later byte can change, and only that."""
    vocabulary = Pieces(*pieces)
    stream = vocabulary.stream(*stops)
    for count in range(1, len(pieces) + 1):
        stream.push(count - 1)
        if stream.stopped:
            break
        whole = b"".join(pieces[:count])
        for more in (b"", b"\x80", b"\xbf\xbf\xbf", b"z", b"ab"):
            later = cut_at_first_stop((whole + more).decode(errors="replace"), stops)
            assert later.startswith(stream.text)
