import pytest

from engine.system.byte_size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1000", 1000),
        ("2GiB", 2 * 2**30),
        (" 512 mib ", 512 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "24", "1", "GiB", "-1", "2 G", "1e9", "2GiB please", "nan"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (312 * 2**20, "312 MiB"),
        (4 * 2**30, "4.0 GiB"),
    ],
)
def test_sizes_are_written_short(size, text):
    assert format_bytes(size) == text
