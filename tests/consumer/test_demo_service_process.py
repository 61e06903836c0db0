from pathlib import Path

import pytest

from consumer.demo.service_process import ServiceError, ServiceProcess


def test_a_service_that_does_not_start_is_an_error_with_its_last_words_and_the_callers_settings_stay_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECALLSTREAM_NO_SUCH", "1")
    service = ServiceProcess({"ENGINE__MODEL": tmp_path / "nowhere"}, tmp_path / "log")
    with service, pytest.raises(ServiceError, match="exit code 1") as caught:
        service.wait_until_ready(60)
    assert "nowhere" in str(caught.value)
    assert "NO_SUCH" not in str(caught.value)


def test_stopping_what_never_ran_is_no_error(tmp_path: Path) -> None:
    service = ServiceProcess({}, tmp_path / "log")
    assert service.stop() is None
    with pytest.raises(ServiceError, match="exit code None"):
        service.check_alive()
