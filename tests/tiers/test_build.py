"""The tiers that settings ask for, on real threads; one that can't be had is left out and told."""

import time
from pathlib import Path

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.kv.tiers.build import OpenTiers, open_tiers
from engine.kv.tiers.store import Label
from engine.kv.tiers.tiers import Tiers
from tests.tiers.support import Shelf, names

BLOCK = 4096
KEYS = [bytes([number]) * 32 for number in range(40)]
LABELS = [Label(key, b"somebody") for key in KEYS]


def opened(folder: Path, shelf: Shelf | None = None, **settings: object) -> OpenTiers:
    config = EngineConfig(model="m", disk_tier_path=str(folder), **settings)
    return open_tiers(config, shelf or Shelf(40, BLOCK), block_bytes=BLOCK, fingerprint="model")


def until(tiers: Tiers, transfers: int) -> None:
    done, give_up_s = 0, time.monotonic() + 300
    while done < transfers and time.monotonic() < give_up_s:
        tiers.wait(1.0)
        done += len(tiers.finished())
    assert done == transfers


def test_both_are_measured_and_told(tmp_path: Path) -> None:
    tiers, info = opened(tmp_path, host_tier_size=10 * BLOCK + 5, disk_tier_size=2**20)
    assert names(tiers) == ["host", "disk"]
    host, disk = info
    assert (host.name, host.blocks, host.bytes) == ("host", 10, 10 * BLOCK + 5)
    assert (disk.name, disk.blocks) == ("disk", (2**20 - 4096) // 8192)
    for one in info:
        assert one.read_rate > 0
        assert one.write_rate > 0
        assert not one.reason
    assert [len(tier.index) for tier in tiers] == [0, 0], "measuring leaves nothing"
    tiers.close()


def test_none_are_asked_for(tmp_path: Path) -> None:
    tiers, info = opened(tmp_path)
    assert (len(tiers), info) == (0, ())
    tiers.close()


def test_blocks_go_out_and_come_back_on_threads(tmp_path: Path) -> None:
    shelf = Shelf(40, BLOCK)
    tiers, _ = opened(tmp_path, shelf, host_tier_size=2**20, disk_tier_size=2**20)
    for tier in tiers:
        transfers = tiers.begin_store(tier, [(block, LABELS[block]) for block in range(20)])
        until(tiers, len(transfers))
        assert tiers.holding(KEYS[3]) is not None
        transfers = tiers.begin_fetch(tier, [(20 + block, LABELS[block]) for block in range(20)])
        until(tiers, len(transfers))
        assert (shelf.data[20:] == shelf.data[:20]).all()
        shelf.data[20:] = 0
    assert list(tiers.violations()) == []
    tiers.erase(KEYS[:5])
    tiers.close()


def test_a_restart_finds_them_and_a_full_tier_is_measured_by_reading(tmp_path: Path) -> None:
    size = 4096 + 4 * 8192
    tiers, _ = opened(tmp_path, disk_tier_size=size)
    (disk,) = tiers
    until(tiers, len(tiers.begin_store(disk, [(block, LABELS[block]) for block in range(6)])))
    assert len(disk.index) == 4
    tiers.close()
    tiers, (info,) = opened(tmp_path, disk_tier_size=size)
    assert tiers.holding(KEYS[3]) is not None
    assert (info.read_rate > 0, info.write_rate) == (True, 0.0)
    tiers.close()


@pytest.mark.parametrize("case", ["no cache", "too small", "not a folder", "in use"])
def test_a_tier_that_cannot_be_had_is_left_out_and_says_why(tmp_path: Path, case: str) -> None:
    settings: dict[str, object] = {"disk_tier_size": 2**20, "host_tier_size": 2**20}
    folder, other = tmp_path / "kv", None
    match case:
        case "no cache":
            settings["enable_prefix_caching"] = False
        case "too small":
            settings |= {"disk_tier_size": 5000, "host_tier_size": 100}
        case "not a folder":
            folder.write_text("a file")
        case "in use":
            other = opened(folder, disk_tier_size=2**20)
    tiers, info = opened(folder, **settings)
    disk = info[-1]
    assert disk.name == "disk"
    expected = {
        "no cache": "prefix cache",
        "too small": "bytes or more, one block",
        "not a folder": "exists",
        "in use": "another process",
    }[case]
    assert expected in disk.reason
    assert ("host" in names(tiers)) == (case in ("not a folder", "in use"))
    assert "disk" not in names(tiers)
    tiers.close()
    if other:
        other.tiers.close()


def test_sizes_that_cannot_be_are_named() -> None:
    with pytest.raises(ConfigError, match="host_tier_size"):
        EngineConfig(model="m", host_tier_size=-1)
    with pytest.raises(ConfigError, match="disk_tier_path"):
        EngineConfig(model="m", disk_tier_size=1)
