"""Sockets' paths stay short enough for the kernel."""

from pathlib import Path

from worker.host.sockets import postgres_socket_dir, valkey_socket

LONGEST_PATH = 107


def test_a_short_data_directory_holds_its_sockets() -> None:
    assert valkey_socket(Path("/srv/claw")) == Path("/srv/claw/valkey.sock")


def test_a_long_one_gets_a_short_folder_of_its_own() -> None:
    one, other = Path("/srv") / ("a" * 200), Path("/srv") / ("b" * 200)
    assert len(str(postgres_socket_dir(one) / ".s.PGSQL.5432.lock")) <= LONGEST_PATH
    assert valkey_socket(one) == valkey_socket(one)
    assert valkey_socket(one) != valkey_socket(other)
