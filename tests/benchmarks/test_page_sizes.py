"""What larger pages waste."""

import gzip

import pytest

from benchmarks.page_sizes import context_lengths, main, wasted_share


def test_full_pages_waste_nothing_and_others_their_rest():
    assert wasted_share([32, 16], 16) == 0
    assert wasted_share([1, 17], 16) == pytest.approx(1 - 18 / 48)
    assert wasted_share([300], 256) == pytest.approx(212 / 512)


def test_both_kinds_of_trace_are_read(tmp_path, capsys):
    table = tmp_path / "one.csv"
    table.write_text("t,input_len,output_len\n0.0,300,12\n1.0,5,1\n")
    lines = tmp_path / "two.jsonl.gz"
    lines.write_bytes(gzip.compress(b'{"input_len": 256, "output_len": 256}\n'))
    assert context_lengths(table) == [312, 6]
    assert context_lengths(lines) == [512]
    main([str(table), str(lines)])
    one, two = capsys.readouterr().out.splitlines()[1:]
    assert one.split()[:3] == ["one", "2", "312"]
    assert two.split()[-2:] == ["0.0%", "0.0%"]
