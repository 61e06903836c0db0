from pathlib import Path

import pytest

from catalog_sync.last_good import LastGood
from catalog_sync.layout import Condemnation
from catalog_sync.quarantine import FILES_KEPT, KEPT, LocalQuarantine


def record(number: int) -> Condemnation:
    return Condemnation(f"{number:016x}", "empty_rate", "x", generation=number, time_ms=number)


def condemn(quarantine: LocalQuarantine, disk: LastGood, number: int) -> None:
    disk.save(record(number).version, {record(number).version: memoryview(b"bytes")}, keep=())
    quarantine.condemn(record(number))
    quarantine.write(quarantine.unwritten())


def test_the_newest_records_stay_with_the_files_of_the_newest_few(tmp_path: Path) -> None:
    disk = LastGood(tmp_path, "m")
    quarantine = LocalQuarantine(disk)
    for number in range(1, KEPT + 4):
        condemn(quarantine, disk, number)
    assert len(quarantine.reasons()) == KEPT
    assert len(list(tmp_path.glob("*.quarantined"))) == FILES_KEPT
    again = LocalQuarantine(disk)
    again.load()
    assert again.reasons() == quarantine.reasons()
    assert again.get(record(KEPT + 3).version) == record(KEPT + 3)
    assert again.get(record(1).version) is None


def test_a_released_version_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    disk = LastGood(tmp_path, "m")
    quarantine = LocalQuarantine(disk)
    condemn(quarantine, disk, 1)
    quarantine.release(record(1).version)
    assert list(tmp_path.iterdir()) == []
    assert quarantine.get(record(1).version) is None


def test_without_a_disk_it_is_remembered_while_the_process_lives() -> None:
    quarantine = LocalQuarantine(None)
    quarantine.condemn(record(1))
    quarantine.write(quarantine.unwritten())
    assert quarantine.unwritten() == []
    assert quarantine.reasons() == {record(1).version: "empty_rate: x"}


def test_a_full_disk_and_a_record_that_makes_no_sense_are_outlived(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "blocker").write_text("a file where the directory should be")
    quarantine = LocalQuarantine(LastGood(tmp_path / "blocker", "m"))
    quarantine.condemn(record(1))
    quarantine.write(quarantine.unwritten())
    assert quarantine.get(record(1).version) is not None
    disk = LastGood(tmp_path, "m")
    (tmp_path / "m@0123456789abcdef.rsc.quarantine.json").write_text("{")
    LocalQuarantine(disk).load()
    assert len(caplog.records) == 2
