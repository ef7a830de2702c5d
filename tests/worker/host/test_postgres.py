"""The embedded cluster: made once, whole or not at all, and guarded against the wrong user or release."""

import os
import stat
from pathlib import Path

import pytest

from tests.worker.host.conftest import RunServer
from worker.host import health, postgres
from worker.host.errors import HostError


@pytest.fixture
def cluster(short_dir: Path) -> Path:
    postgres.prepare(short_dir / "pgdata", socket_dir=short_dir / "socket", is_durable=False)
    return short_dir / "pgdata"


def test_a_half_made_cluster_is_made_again(short_dir: Path) -> None:
    (short_dir / "pgdata.new").mkdir()
    (short_dir / "pgdata.new" / "PG_VERSION").write_text("18")
    postgres.prepare(short_dir / "pgdata", socket_dir=short_dir / "socket", is_durable=False)
    assert (short_dir / "pgdata" / "global" / "pg_control").exists()
    assert not (short_dir / "pgdata.new").exists()


def test_a_cluster_that_is_there_stays_as_it_is(cluster: Path) -> None:
    made = (cluster / "PG_VERSION").stat().st_mtime_ns
    postgres.prepare(cluster, socket_dir=cluster.parent / "socket")
    assert (cluster / "PG_VERSION").stat().st_mtime_ns == made


@pytest.mark.skipif(os.geteuid() != 0, reason="a normal user's Postgres runs as that user")
def test_folders_it_opens_for_the_servers_user_are_told(short_dir: Path) -> None:
    closed = short_dir / "closed"
    closed.mkdir(mode=0o700)
    opened = postgres.prepare(closed / "pgdata", socket_dir=closed / "socket", is_durable=False)
    assert closed in opened
    assert stat.S_IMODE(closed.stat().st_mode) == 0o701


def test_only_its_user_can_reach_the_socket(cluster: Path) -> None:
    assert stat.S_IMODE((cluster.parent / "socket").stat().st_mode) == stat.S_IRWXU


def test_it_refuses_a_cluster_of_another_release(cluster: Path) -> None:
    (cluster / "PG_VERSION").write_text("9\n")
    with pytest.raises(HostError, match="made by Postgres 9 and this one is 18"):
        postgres.prepare(cluster, socket_dir=cluster.parent / "socket")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's folder")
def test_it_refuses_another_users_cluster(cluster: Path) -> None:
    os.chown(cluster, 12345, 12345)
    with pytest.raises(HostError, match="belongs to user number 12345"):
        postgres.prepare(cluster, socket_dir=cluster.parent / "socket")


def test_a_durable_server_gives_up_no_safety(cluster: Path) -> None:
    words = postgres.command(cluster, socket_dir=cluster.parent / "socket")
    assert not {"fsync=off", "synchronous_commit=off", "full_page_writes=off"} & set(words)
    assert "listen_addresses=" in words


def test_the_database_is_made_once(cluster: Path, run_server: RunServer) -> None:
    socket_dir = cluster.parent / "socket"
    run_server(
        postgres.command(cluster, socket_dir=socket_dir, is_durable=False),
        user=postgres.server_user(),
    )
    health.wait_until_healthy(
        "postgres", lambda: health.check_postgres_socket(socket_dir, user=postgres.SUPERUSER), timeout_s=20
    )
    for _ in range(2):
        postgres.ensure_database("claw", socket_dir=socket_dir)
    assert health.check_postgres(f"host={socket_dir} user={postgres.SUPERUSER} dbname=claw") is None
