"""The only reader of environment variables on the web side. `.env.example` shows the same names; a test compares."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from dotenv import dotenv_values
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from worker.engine.launch import default_max_lora_rank, detect_device, detect_dtype

ROOT = Path(__file__).resolve().parent.parent
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
DEFAULT_MODEL = "smollm2-135m-instruct"
PREFIX = "CLAW_"
SET_UP_NAMES = frozenset({"CLAW_ML", "CLAW_TORCH_INDEX"})  # read by setup/bootstrap.py alone
SIMILAR = 0.7  # of 1: from there on a name in the environment is a slip, below it another program's


class BadSettings(Exception):
    """A variable has a value that nothing can run with; the message names it."""


class Env(BaseSettings):
    """Each field is one variable; empty means the default."""

    model_config = SettingsConfigDict(env_file=ROOT / ".env", env_ignore_empty=True, extra="ignore")
    _mask_wrapped: ClassVar[bool] = True  # Django asks for it each time settings are read; pydantic's no takes 8 µs

    data_dir: Path = Field(default=ROOT / "var", alias="CLAW_DATA_DIR")
    cache_dir: Path = Field(default=Path("~/.cache/claw-platform"), alias="CLAW_CACHE_DIR")
    host: str = Field(default="127.0.0.1", alias="CLAW_HOST")
    port: int = Field(default=8000, ge=1, le=65535, alias="CLAW_PORT")
    base_url: str = Field(default="", alias="CLAW_BASE_URL")
    engine_port: int = Field(default=8100, ge=1, le=65535, alias="CLAW_ENGINE_PORT")
    engine_dtype: Literal["auto", "bfloat16", "float32"] = Field(default="auto", alias="CLAW_ENGINE_DTYPE")
    max_lora_rank: int = Field(default=0, ge=0, alias="CLAW_MAX_LORA_RANK")
    secret_key: str = Field(default="", alias="CLAW_SECRET_KEY")
    debug: bool = Field(default=False, alias="CLAW_DEBUG")
    allowed_hosts: str = Field(default="", alias="CLAW_ALLOWED_HOSTS")
    ml_python: Path = Field(default=ROOT / ".venv-ml/bin/python", alias="CLAW_ML_PYTHON")
    model: Path | None = Field(default=None, alias="CLAW_MODEL")
    train_hostfile: Path | None = Field(default=None, alias="CLAW_TRAIN_HOSTFILE")
    idle_close_s: int = Field(default=600, ge=0, alias="CLAW_IDLE_CLOSE_S")
    keep_calls_months: int = Field(default=0, ge=0, le=1200, alias="CLAW_KEEP_CALLS_MONTHS")
    drain_s: int = Field(default=600, ge=0, alias="CLAW_DRAIN_S")
    engine_wait_s: float = Field(default=60, ge=0, alias="CLAW_ENGINE_WAIT_S")
    engine_queue: int = Field(default=1000, ge=1, alias="CLAW_ENGINE_QUEUE")
    max_body_mb: int = Field(default=32, ge=1, le=1024, alias="CLAW_MAX_BODY_MB")
    clawr1_project: str = Field(default="", alias="CLAW_CLAWR1_PROJECT")
    clawr1_networks: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("127.0.0.0/8", "::1/128"), alias="CLAW_CLAWR1_NETWORKS"
    )
    provider_hosts: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="CLAW_PROVIDER_HOSTS")
    webhook_hosts: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="CLAW_WEBHOOK_HOSTS")
    media_domains: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="CLAW_MEDIA_DOMAINS")
    database_url: str = Field(default="", alias="DATABASE_URL")
    redis_url: str = Field(default="", alias="REDIS_URL")
    engine_urls: Annotated[tuple[str, ...], NoDecode] = Field(default=(), alias="ENGINE_URLS")

    @field_validator("provider_hosts", "webhook_hosts", "media_domains", mode="before")
    @classmethod
    def split_hosts(cls, value: object) -> object:
        """Read a comma-separated list."""
        if isinstance(value, str):
            return tuple(host.strip().lower() for host in value.split(",") if host.strip())
        return value

    @field_validator("clawr1_networks", mode="before")
    @classmethod
    def split_networks(cls, value: object) -> object:
        """Read a comma-separated list; raises ValueError for what is no network."""
        if isinstance(value, str):
            value = tuple(network.strip() for network in value.split(",") if network.strip())
        for network in value if isinstance(value, tuple) else ():
            ip_network(network)
        return value

    @field_validator("engine_urls", mode="before")
    @classmethod
    def split_urls(cls, value: object) -> object:
        """Read a comma-separated list."""
        if isinstance(value, str):
            return tuple(url.strip().rstrip("/") for url in value.split(",") if url.strip())
        return value

    @field_validator("engine_urls", "base_url")
    @classmethod
    def check_urls(cls, value: tuple[str, ...] | str) -> tuple[str, ...] | str:
        """Refuse what is no address of a web server."""
        for url in (value,) if isinstance(value, str) else value:
            if url and not url.startswith(("http://", "https://")):
                raise ValueError("addresses begin with http:// or https://")
            _ = urlsplit(url).port  # raises ValueError
        return value

    @field_validator("database_url")
    @classmethod
    def check_database(cls, value: str) -> str:
        """Refuse other databases, and ports that are none."""
        parts = urlsplit(value)
        if value and parts.scheme not in {"postgres", "postgresql"}:
            raise ValueError(f"it must be postgresql://…, not {parts.scheme}://…: Postgres is the only dialect")
        _ = parts.port  # raises ValueError
        return value

    def model_post_init(self, _context: object, /) -> None:
        """Resolve what is relative or automatic once, so that every process sees the same."""
        if self.engine_dtype == "auto":
            self.engine_dtype = detect_dtype()
        self.max_lora_rank = self.max_lora_rank or default_max_lora_rank(detect_device())
        self.data_dir = self.data_dir.expanduser().resolve()
        self.cache_dir = self.cache_dir.expanduser().resolve()

    @property
    def model_dir(self) -> Path:
        """Folder of the base model that the local engine serves and runs start from."""
        chosen = self.model or self.cache_dir / "models" / DEFAULT_MODEL
        return chosen.expanduser().resolve()

    @property
    def public_base_url(self) -> str:
        """Address by which agents and browsers reach us, without a trailing slash."""
        return self.base_url.rstrip("/") or f"http://{self.host}:{self.port}"

    @property
    def local_url(self) -> str:
        """Address by which programs on this host reach the web process."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)  # noqa: S104
        return f"http://{host}:{self.port}"

    @property
    def hosts(self) -> list[str]:
        """Host names that the web process answers to."""
        named = [host.strip() for host in self.allowed_hosts.split(",") if host.strip()]
        return [*LOOPBACK, self.host, *self._host_of_base_url(), *named]

    @property
    def is_for_this_host(self) -> bool:
        """Whether only users of this machine reach us: no name or address of ours leads here from elsewhere."""
        return set(self.hosts) <= set(LOOPBACK)

    def _host_of_base_url(self) -> list[str]:
        host = urlsplit(self.base_url).hostname or ""
        return [f"[{host}]" if ":" in host else host] if host else []


@cache
def read_env() -> Env:
    """Return the environment, read once a process. Raises BadSettings."""
    check_names(ROOT / ".env")
    try:
        return Env()
    except ValidationError as error:
        first = error.errors()[0]  # never its value: that may hold a password
        name = first["loc"][0] if first["loc"] else "settings"
        raise BadSettings(f"{name}: {first['msg'].removeprefix('Value error, ')}") from None


def check_names(dotenv: Path) -> None:
    """Refuse a file with a CLAW_ name that nothing reads. Raises BadSettings, with the nearest name that is read."""
    for name in map(str.upper, dotenv_values(dotenv)):  # case does not count where they are read
        if name.startswith(PREFIX) and name not in _known_names():
            nearest = _find_nearest(name, similar=0)
            raise BadSettings(f"{name}: there is no such setting (in {dotenv}); the nearest is {nearest}")


def find_slips() -> Iterator[tuple[str, str]]:
    """Yield each CLAW_ variable of the environment that nothing reads but is spelt much like one: it, and that one.

    The environment is everybody's: an unknown name there is refused by nobody.
    """
    for name in sorted(os.environ):
        if name.startswith(PREFIX) and name not in _known_names() and (nearest := _find_nearest(name, similar=SIMILAR)):
            yield name, nearest


def _known_names() -> set[str]:
    return {str(field.alias) for field in Env.model_fields.values()} | SET_UP_NAMES


def _find_nearest(name: str, *, similar: float) -> str:
    stems = [known.removeprefix(PREFIX) for known in sorted(_known_names()) if known.startswith(PREFIX)]
    nearest = get_close_matches(name.removeprefix(PREFIX), stems, n=1, cutoff=similar)
    return PREFIX + nearest[0] if nearest else ""


def make_folder(env: Env, name: str = "") -> Path:
    """Return the folder `name` in the data directory, made when missing. Raises BadSettings."""
    folder = env.data_dir / name
    with _usable(env):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def _usable(env: Env) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadSettings(f"CLAW_DATA_DIR: {env.data_dir} cannot be used: {error.strerror}") from error


def read_secret_key(env: Env) -> str:
    """Return the signing key: the variable, else one made once and kept in the data directory (mode 0600)."""
    if env.secret_key:
        return env.secret_key
    with _usable(env):
        return _keep_secret_key(env.data_dir / "secret_key")


def _keep_secret_key(path: Path) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".secret_key.{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(secrets.token_urlsafe(50))
        try:
            path.hardlink_to(draft)  # Of two processes that start at once the first one's key stands.
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text().strip()
