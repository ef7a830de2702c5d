"""The command that starts a trainer, as the web side builds it."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker.trainer.command import REPOSITORY, build_command

CODE = """
import sys
import worker.trainer.command, worker.trainer.events
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"torch", "deepspeed", "transformers", "peft", "numpy"}))
"""


def test_it_names_folder_processes_and_port() -> None:
    argv, environment = build_command("python3", Path("/runs/1"), n_processes=2, master_port=29512)
    assert argv[:4] == ["python3", "-u", "-m", "worker.trainer"]
    assert argv[4:] == ["/runs/1", "--processes", "2", "--master-port", "29512"]
    assert environment == {"PYTHONPATH": str(REPOSITORY)}
    assert (REPOSITORY / "worker" / "trainer" / "__main__.py").is_file()


def test_a_hostfile_is_passed_on() -> None:
    argv, _ = build_command("python3", "/runs/1", n_processes=1, master_port=1, hostfile="/etc/hosts.ds", n_hosts=3)
    assert argv[-4:] == ["--hostfile", "/etc/hosts.ds", "--hosts", "3"]


def test_no_process_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        build_command("python3", "/runs/1", n_processes=0, master_port=1)


def test_building_it_loads_no_torch() -> None:
    answer = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert answer.stdout.strip() == "[]"
