"""Set-up: what it checks, what it skips, and how it goes on after an interruption."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from dotenv import dotenv_values

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(tmp_path: Path) -> ModuleType:
    """A fresh copy of the module that works in a folder of its own."""
    spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "setup" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ROOT = tmp_path  # type: ignore[attr-defined]
    return module


@pytest.mark.parametrize(
    ("targets", "steps"),
    [
        (["web"], ["web"]),
        (["model"], ["ml", "model"]),
        (["js", "dev"], ["web", "dev", "js"]),
        (["all"], ["web", "dev", "ml", "js", "model"]),
    ],
)
def test_steps_come_with_what_they_stand_on_in_order(
    bootstrap: ModuleType, targets: list[str], steps: list[str]
) -> None:
    assert bootstrap.choose_steps(targets) == steps


class Installation:
    """A tiny environment: what is installed and how often."""

    def __init__(self, bootstrap: ModuleType, folder: Path) -> None:
        self.bootstrap = bootstrap
        self.venv = folder / "venv"
        self.file = folder / "requirements.txt"
        self.file.write_text("nothing==1\n")
        self.n_installed = 0

    def run(self, *, fails: bool = False) -> None:
        def install() -> None:
            self.n_installed += 1
            if fails:
                raise self.bootstrap.SetupError("the network is down")

        self.bootstrap.install_once(self.venv, [self.file], name="web", python=sys.executable, install=install)


@pytest.fixture(scope="module")
def venv_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("installation")


def test_an_environment_is_made_once_and_again_when_its_requirements_change(
    bootstrap: ModuleType, venv_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    installation = Installation(bootstrap, venv_folder)
    installation.run()
    installation.run()
    assert installation.n_installed == 1
    assert "web: up to date" in capsys.readouterr().out
    installation.file.write_text("nothing==2\n")
    installation.run()
    assert installation.n_installed == 2


def test_an_interrupted_installation_is_taken_up_again(bootstrap: ModuleType, venv_folder: Path) -> None:
    installation = Installation(bootstrap, venv_folder)
    installation.file.write_text("nothing==3\n")
    with pytest.raises(bootstrap.SetupError):
        installation.run(fails=True)
    installation.run()
    assert installation.n_installed == 2


def test_a_half_made_environment_is_made_again(bootstrap: ModuleType, tmp_path: Path) -> None:
    installation = Installation(bootstrap, tmp_path)
    (installation.venv / "bin").mkdir(parents=True)
    (installation.venv / "bin" / "python").touch()
    installation.run()
    assert installation.n_installed == 1
    assert (installation.venv / "pyvenv.cfg").exists()


def test_everything_missing_is_said_at_once(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 10, 1))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _name: None)
    with pytest.raises(bootstrap.SetupError) as refused:
        bootstrap.check_machine(for_ml=True)
    for words in ("Python 3.11 or newer", "make:", "a C++ compiler", "no python3.11 on PATH"):
        assert words in str(refused.value)


def test_a_full_disk_is_said(bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "ML_VENV", tmp_path / "nowhere")
    monkeypatch.setattr(bootstrap.shutil, "disk_usage", lambda _path: bootstrap.shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(bootstrap.SetupError, match=r"0\.0 GB are free"):
        bootstrap.check_machine(for_ml=True)


def test_the_flavour_follows_the_driver_and_can_be_chosen(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLAW_ML", raising=False)
    driver = tmp_path / "nvidia-smi"
    monkeypatch.setattr(bootstrap.shutil, "which", lambda _name: str(driver) if driver.exists() else None)
    assert bootstrap.choose_ml_flavour() == "cpu"
    driver.write_text("#!/bin/sh\necho 'GPU 0: one'\n")
    driver.chmod(0o755)
    assert bootstrap.choose_ml_flavour() == "cuda"
    driver.write_text("#!/bin/sh\nexit 9\n")
    assert bootstrap.choose_ml_flavour() == "cpu"
    monkeypatch.setenv("CLAW_ML", "cuda")
    assert bootstrap.choose_ml_flavour() == "cuda"
    monkeypatch.setenv("CLAW_ML", "tpu")
    with pytest.raises(bootstrap.SetupError, match="cpu or cuda"):
        bootstrap.choose_ml_flavour()


DOTENV = """
# CLAW_ML=commented
CLAW_ML=cpu
  CLAW_TORCH_INDEX = https://wheels.example/cpu#a   # a remark
export CLAW_CACHE_DIR="${HOME}/two words # no remark"
CLAW_BASE_URL='http://claw.example'  # a remark
CLAW_MODEL=${CLAW_ML}/model
CLAW_HOST=
CLAW_ML=cuda
"""


def test_dotenv_is_read_as_the_web_side_reads_it(bootstrap: ModuleType, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(DOTENV)
    assert bootstrap.read_dotenv(tmp_path / ".env") == dict(dotenv_values(tmp_path / ".env"))


def test_a_setting_comes_from_the_environment_and_else_from_dotenv(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLAW_ML", raising=False)
    assert bootstrap.read_setting("CLAW_ML") == ""
    (tmp_path / ".env").write_text("CLAW_ML=cuda\n")
    assert bootstrap.choose_ml_flavour() == "cuda"
    monkeypatch.setenv("CLAW_ML", "")
    assert bootstrap.choose_ml_flavour() == "cuda"
    monkeypatch.setenv("CLAW_ML", "cpu")
    assert bootstrap.choose_ml_flavour() == "cpu"


def test_the_model_goes_where_dotenv_says(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CLAW_CACHE_DIR", raising=False)
    (tmp_path / ".env").write_text(f"CLAW_CACHE_DIR={tmp_path}/cache\n")
    model = tmp_path / "cache" / "models" / bootstrap.MODEL_NAME
    model.mkdir(parents=True)
    (model / "config.json").touch()
    bootstrap.set_up_model()
    assert f"already at {model}" in capsys.readouterr().out


def test_a_command_that_fails_is_shown_with_the_end_of_its_output(bootstrap: ModuleType) -> None:
    with pytest.raises(bootstrap.SetupError, match=r"(?s)the step failed \(exit 3\).*the reason"):
        bootstrap.run([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], what="the step")


def test_torchs_index_is_asked_for_only_when_pip_finds_no_torch(
    bootstrap: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []

    def pip(_venv: Path, *arguments: str, what: str) -> None:
        calls.append(arguments)
        if "--no-deps" in arguments and "--extra-index-url" not in arguments:
            raise bootstrap.SetupError("No matching distribution found for torch==2.13.0+cpu")

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.delenv("CLAW_TORCH_INDEX", raising=False)
    with pytest.raises(bootstrap.SetupError, match="CLAW_TORCH_INDEX"):
        bootstrap._install_ml_cpu(Path("ml.txt"), Path("dev.txt"))
    monkeypatch.setenv("CLAW_TORCH_INDEX", "file:///wheels")
    bootstrap._install_ml_cpu(Path("ml.txt"), Path("dev.txt"))
    assert calls[-1][:2] == ("--extra-index-url", "file:///wheels")


def test_every_requirement_is_pinned_and_names_no_address() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        for line in file.read_text().splitlines():
            if not line.startswith("#"):
                assert "==" in line, f"{file.name}: {line}"
                assert "://" not in line, f"{file.name}: {line}"
    assert "resolved" not in (ROOT / "package-lock.json").read_text()
