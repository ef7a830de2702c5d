"""The job of an import: who may start it, what a killed worker leaves, and its end."""

from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.importing import reward_imported
from apps.feedback.models import Label
from apps.trajectories.datasets import import_job, importing, storage
from apps.trajectories.datasets.import_writing import write_trajectories
from apps.trajectories.datasets.importing import ImportSettings
from apps.trajectories.datasets.models import Import, ImportedTrajectory
from apps.trajectories.models import Trajectory
from tests.apps.trajectories.datasets.import_rows import CHAT, SHAREGPT, TOKENS, bad, claw_r1
from tests.apps.trajectories.datasets.importer import ImportRows, as_lines, import_file, problems_of
from tests.factories.datasets import DatasetFactory

pytestmark = pytest.mark.django_db


class TestJob:
    @pytest.mark.parametrize("is_again", [False, True])
    def test_a_killed_worker_is_followed_by_one_that_goes_on(
        self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch, is_again: bool
    ) -> None:
        made: list[Any] = []
        write = write_trajectories
        monkeypatch.setattr(import_job, "PIECE", 1)

        def write_and_die(*args: Any) -> Any:
            if len(made) == 2:
                raise KeyboardInterrupt
            made.append(None)
            return write(*args)

        content = as_lines([CHAT, SHAREGPT, claw_r1(0, is_last=True)])
        with monkeypatch.context() as patch:
            patch.setattr(import_job, "write_trajectories", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                import_file(content, agent=agent, caller=caller, is_again=is_again)
        assert Trajectory.objects.count() == 2
        source = Import.objects.get()
        with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=False):
            assert importing.resend_imports() == 1
            import_job.run_import(source.pk, reward=reward_imported)
        source.refresh_from_db()
        assert (source.state, source.n_imported, source.n_known) == ("done", 3, 0)
        assert Trajectory.objects.count() == 3

    def test_others_have_their_turn(self, import_rows: ImportRows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(import_job, "PIECE", 1)
        source = import_rows(CHAT, b"{", bad(TOKENS, mask=[]), CHAT, SHAREGPT, slice_s=-1)
        assert (source.state, source.cursor, Trajectory.objects.count()) == ("queued", 1, 1)
        for _ in range(3):
            import_job.run_import(source.pk, reward=reward_imported, slice_s=-1)
        import_job.run_import(source.pk, reward=reward_imported)
        source.refresh_from_db()
        assert (source.state, source.n_imported, source.n_refused) == ("done", 3, 2)
        assert [line for line, _ in problems_of(source)] == [2, 3]

    def test_rewards_are_labels(self, import_rows: ImportRows) -> None:
        import_rows(claw_r1(0, reward=0.0), claw_r1(1, reward=1.0), CHAT)
        steps = Label.objects.filter(step__isnull=False)
        assert set(steps.values_list("value", flat=True)) == {0.0, 1.0}
        whole = Label.objects.get(step=None)  # the steps' mean says it of the other
        assert (whole.value, whole.source, "rows.jsonl" in whole.text) == (0.5, "environment", True)
        assert set(Trajectory.objects.values_list("reward", flat=True)) == {0.5}

    def test_its_file_is_gone_afterwards(self, import_rows: ImportRows, data_dir: Path) -> None:
        import_rows(CHAT)
        assert not list((data_dir / "imports").iterdir())

    def test_what_a_killed_worker_left_of_an_ended_one_goes(self, import_rows: ImportRows, data_dir: Path) -> None:
        source = import_rows(CHAT)
        for name in (source.id, "impt_being_made"):
            storage.job_folder(name, kind="imports")
        importing.resend_imports()
        assert [folder.name for folder in (data_dir / "imports").iterdir()] == ["impt_being_made"]

    def test_it_is_cancelled(self, agent: Agent, caller: Caller) -> None:
        content = as_lines([CHAT])
        start = partial(importing.start_import, agent=agent, caller=caller, settings=ImportSettings())
        source = start(chunks=[content], file_name="a", n_bytes=len(content))
        importing.cancel_import(source=source, caller=caller)
        import_job.run_import(source.pk, reward=reward_imported)
        assert not Trajectory.objects.exists()
        with pytest.raises(Conflict):
            importing.cancel_import(source=source, caller=caller)


class TestStart:
    def test_a_reviewer_imports_nothing(self, agent: Agent, mate: User) -> None:
        with pytest.raises(Forbidden):
            import_file(as_lines([CHAT]), agent=agent, caller=Caller(user=mate))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "empty"),
            (b"\x1f\x8b\x08", "unpack"),
            (b"PK\x03\x04", "unpack"),
            ("{}".encode("utf-16"), "not UTF-8"),
            (b"{\x00}\x00", "not UTF-8"),
            (b"\x89PNG\r\n\x1a\n\x00\x00", "not UTF-8"),
            (b"x" * 100, "several"),
        ],
    )
    def test_a_file_that_is_none(
        self, agent: Agent, caller: Caller, data_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.import_file.MAX_BYTES", 50)
        with pytest.raises(Exception, match=words):
            import_file(content, agent=agent, caller=caller)
        assert not Import.objects.exists()
        assert not list((data_dir / "imports").iterdir())

    @pytest.mark.parametrize("wrong", [{"row_format": "odd"}, {"channel": "odd"}])
    def test_bad_settings(self, agent: Agent, caller: Caller, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            import_file(as_lines([CHAT]), agent=agent, caller=caller, **wrong)

    def test_another_projects_dataset(self, agent: Agent, caller: Caller) -> None:
        with pytest.raises(NotFound):
            import_file(as_lines([CHAT]), agent=agent, caller=caller, dataset=DatasetFactory.create())

    def test_a_disk_without_room(self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "RESERVE_BYTES", 2**60)
        with pytest.raises(storage.DiskFull, match="make room"):
            import_file(as_lines([CHAT]), agent=agent, caller=caller)
        assert not ImportedTrajectory.objects.exists()
