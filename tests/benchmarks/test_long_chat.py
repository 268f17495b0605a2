"""The table and the picture of a chat in a window."""

from xml.etree import ElementTree as ET

from rich.console import Console

from benchmarks.long_chat import PlayedChat, picture, table_of
from benchmarks.process_memory import MIB
from benchmarks.window_times import WindowTurn, figures


def played(policy, *, trimmed_ms):
    turns = [
        WindowTurn(
            turn=number,
            trimmed=number % 5 == 4,
            ttft_ms=trimmed_ms if number % 5 == 4 else 10.0,
            input_tokens=900,
            computed_tokens=20,
            output_tokens=16,
        )
        for number in range(20)
    ]
    return PlayedChat(
        policy=policy, turns=turns, prefills=[], pss=[100 * MIB, 110 * MIB, 120 * MIB]
    )


def test_the_picture_has_the_two_fidelities_over_all_turns():
    chats = [
        played("sliding_window exact", trimmed_ms=400.0),
        played("sliding_window shifted", trimmed_ms=12.0),
        played("token_budget", trimmed_ms=10.0),
    ]
    root = ET.fromstring(picture(chats))
    lines = root.findall("{http://www.w3.org/2000/svg}polyline")
    assert [len(line.get("points").split()) for line in lines] == [20, 20]
    texts = [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]
    assert {"exact", "shifted", "turn"} <= set(texts)
    assert "token_budget" not in texts


def test_the_table_tells_what_was_refused_and_what_a_trim_costs():
    refused = [WindowTurn(turn=i, refusal="context_length_exceeded") for i in range(20)]
    one = played("exact", trimmed_ms=400.0)
    table = table_of(
        {"exact": figures(one.turns, []), "none": figures(refused, [])},
        {"exact": one.pss, "none": [MIB] * 3},
    )
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    rows = {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for line in capture.get().splitlines()
        if len(cells := line.strip("│┃ ").split("│")) == 3
    }
    assert rows["turns with a trim"] == ["4 (20.0%)", "0 (0.0%)"]
    assert rows["turns with a trim, TTFT"] == ["400.0 (400.0)", "-"]
    assert rows["/ last quarter"] == ["40.00", "-"]
    assert rows["refused, from turn"] == ["0", "20 context_length_exceeded, from 0"]
    assert rows["PSS, MB: first, half, last"] == ["100, 110, 120", "1, 1, 1"]
