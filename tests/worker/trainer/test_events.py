"""The run's event file: whole lines only, whatever kills the writer."""

from pathlib import Path

from apps.core.contracts.training import EVENTS_FILE, AdapterFiles
from tests.worker.trainer.samples import PROBE
from worker.trainer.events import EventLog, make_event, read_events


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    adapter = AdapterFiles(path="adapters/step-000001", sha256="ab")
    step = make_event("step", step=1, metrics={"loss": 0.5}, adapter=adapter, probe=PROBE)
    log.append(make_event("ready", step=0))
    log.append(step)
    assert [event.kind for event in log.read()] == ["ready", "step"]
    assert log.read()[1] == step


def test_a_line_in_the_making_is_not_there_yet(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.append(make_event("ready", step=0))
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"kind":"st')
    assert [event.kind for event in log.read()] == ["ready"]


def test_the_next_writer_drops_a_torn_line(tmp_path: Path) -> None:
    EventLog(tmp_path).append(make_event("ready", step=0))
    with (tmp_path / EVENTS_FILE).open("a") as file:
        file.write('{"kind":"st')
    EventLog(tmp_path).append(make_event("done", step=3))
    assert [event.kind for event in read_events(tmp_path / EVENTS_FILE)] == ["ready", "done"]


def test_reading_can_start_after_what_is_known(tmp_path: Path) -> None:
    log = EventLog(tmp_path)
    log.append(make_event("ready", step=0))
    offset = (tmp_path / EVENTS_FILE).stat().st_size
    log.append(make_event("done", step=0))
    assert [event.kind for event in read_events(tmp_path / EVENTS_FILE, offset=offset)] == ["done"]


def test_no_file_has_no_events(tmp_path: Path) -> None:
    assert read_events(tmp_path / EVENTS_FILE) == []
