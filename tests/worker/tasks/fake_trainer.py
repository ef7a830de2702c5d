"""A trainer that trains nothing but keeps to the run folder's protocol, in a process of its own.

The environment variable FAKE_TRAINER says how it misbehaves: `crash:2` (dies in step 2 with words on stderr), `fail:2`
(tells that step 2 failed), `late:1` (dies between checkpoint and event), `silent` (never ready), `stuck` (takes a batch
and never ends), `mute` (like stuck, and of its two processes one gives no sign of life),
`deaf` (like stuck, and minds neither the stop file, nor SIGTERM, nor that its parent is gone),
`abort` (exit code 134 after all work is done), `slow` (half a second a step).
"""

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from apps.core.contracts.checksum import hash_folder
from apps.core.contracts.codec import decode, encode
from apps.core.contracts.training import (
    EVENTS_FILE,
    JOB_FILE,
    STOP_FILE,
    AdapterFiles,
    TrainBatch,
    TrainerEvent,
    TrainJob,
    adapter_dir,
    batch_file,
    beat_file,
    checkpoint_dir,
)
from tests.fakes.probe import answer_probe

MODE, _, STEP = os.environ.get("FAKE_TRAINER", "").partition(":")
PARENT = os.getppid()
_asked_to_stop: list[int] = []


def is_bad(mode: str, step: int) -> bool:
    return mode == MODE and int(STEP or 0) == step


def should_stop(run_dir: Path) -> bool:
    if MODE == "deaf":
        return False
    return bool(_asked_to_stop) or (run_dir / STOP_FILE).exists() or os.getppid() != PARENT


def tell(run_dir: Path, event: TrainerEvent) -> None:
    with (run_dir / EVENTS_FILE).open("a") as file:
        file.write(encode(event) + "\n")


def show_life(run_dir: Path, *, ranks: tuple[int, ...]) -> None:
    for rank in ranks:
        (run_dir / beat_file(rank)).parent.mkdir(exist_ok=True)
        (run_dir / beat_file(rank)).touch()


def is_told(run_dir: Path, step: int) -> bool:
    events = run_dir / EVENTS_FILE
    return events.exists() and f'"kind":"step","step":{step},' in events.read_text()


def resume(run_dir: Path) -> int:
    """Return the last finished step; its event is told if a crash kept it back."""
    states = sorted(run_dir.glob("checkpoints/step-*/state.json"))
    if not states:
        return 0
    event = decode(TrainerEvent, states[-1].read_text())
    if not is_told(run_dir, event.step):
        tell(run_dir, event)
    return event.step


def wait_for_batch(run_dir: Path, step: int) -> TrainBatch | None:
    path = run_dir / batch_file(step)
    while not path.exists():
        if should_stop(run_dir):
            return None
        time.sleep(0.02)
    return decode(TrainBatch, path.read_text())


def train(run_dir: Path, batch: TrainBatch) -> TrainerEvent:
    """Write adapter and checkpoint of a step."""
    adapter = run_dir / adapter_dir(batch.step)
    adapter.mkdir(parents=True, exist_ok=True)
    (adapter / "adapter_config.json").write_text("{}")
    rewards = [sample.advantage for sample in batch.samples]
    event = TrainerEvent(
        kind="step",
        step=batch.step,
        at=time.time(),
        metrics={"loss": -sum(rewards), "samples": float(len(rewards))},
        adapter=AdapterFiles(path=str(adapter), sha256=hash_folder(adapter)),
        probe=answer_probe(batch.probe),
    )
    checkpoint = run_dir / checkpoint_dir(batch.step)
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "state.json").write_text(encode(event))
    with (run_dir / "trained.txt").open("a") as file:
        file.write(f"{batch.step} {' '.join(sample.step_id for sample in batch.samples)}\n")
    return event


def main(run_dir: Path) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN if MODE == "deaf" else lambda number, _: _asked_to_stop.append(number))
    while MODE == "silent" and not should_stop(run_dir):
        time.sleep(0.02)
    job = decode(TrainJob, (run_dir / JOB_FILE).read_text())
    step = resume(run_dir)
    words = f"Went back to the one of step {step}." if is_told(run_dir, step + 1) else ""
    tell(run_dir, TrainerEvent(kind="ready", step=step, at=time.time(), message=words))
    show_life(run_dir, ranks=(0, 1))
    while step < job.n_steps:
        step += 1
        batch = wait_for_batch(run_dir, step)
        while batch is not None and MODE in ("stuck", "deaf", "mute") and not should_stop(run_dir):
            show_life(run_dir, ranks=(0,))
            time.sleep(0.02)
        time.sleep(0.5 if MODE == "slow" else 0)
        if batch is None or should_stop(run_dir):
            tell(run_dir, TrainerEvent(kind="stopped", step=step - 1, at=time.time()))
            return 0
        if is_bad("crash", step):
            sys.stderr.write("RuntimeError: CUDA out of memory\n")
            return 7
        if is_bad("fail", step):
            tell(run_dir, TrainerEvent(kind="failed", step=step, at=time.time(), message="loss is not a number"))
            return 1
        is_repeated = is_told(run_dir, step)
        event = train(run_dir, batch)
        if is_bad("late", step):
            os.kill(os.getpid(), signal.SIGKILL)
        if not is_repeated:
            tell(run_dir, event)
    tell(run_dir, TrainerEvent(kind="done", step=step, at=time.time()))
    return 134 if MODE == "abort" else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
