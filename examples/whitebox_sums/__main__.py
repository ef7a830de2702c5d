"""Play sums against a running platform: `python -m examples.whitebox_sums --key claw-… --model FOLDER`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from tokenizers import Tokenizer

from examples.whitebox_sums.flow import Episode, play
from examples.whitebox_sums.platform import Platform
from examples.whitebox_sums.tasks import Task, make_tasks

MODEL = Path("~/.cache/claw-platform/models/smollm2-135m-instruct")


class FileTokenizer:
    """The tokenizer in a model's folder. Special tokens stand in the texts by themselves."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model.expanduser() / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def main() -> None:
    """Play every task `--tries` times; the tries at one task are a group."""
    options = _read_options()
    platform, tokenizer = Platform(options.url, options.key), FileTokenizer(options.model)
    rewards = [
        _play_once(platform, tokenizer, task, temperature=options.temperature, max_tokens=options.max_tokens).reward
        for task in make_tasks(options.tasks, seed=options.seed)
        for _ in range(options.tries)
    ]
    print(f"{len(rewards)} trajectories, mean reward {fmean(rewards):.2f}")


def _play_once(
    platform: Platform, tokenizer: FileTokenizer, task: Task, *, temperature: float, max_tokens: int
) -> Episode:
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    trajectory_id = platform.open_trajectory(group=task.name, metadata={"question": task.question})
    episode = play(task, generate=lambda prompt: platform.generate(prompt, sampling), tokenizer=tokenizer)
    submitted = platform.submit_steps(trajectory_id, episode.steps)
    platform.add_reward(trajectory_id, episode.reward)
    platform.complete(trajectory_id)
    outcome = f"{task.name} → {episode.answers[-1].strip()!r}  {episode.reward:g}"
    print(f"{trajectory_id}  {outcome}  {_sum_up(submitted['steps'])}")
    return episode


def _sum_up(steps: Sequence[dict[str, object]]) -> str:
    n_exact = sum(bool(step["is_exact"]) for step in steps)
    return f"{len(steps)} steps, {n_exact} exact, spoken by {len({step['version'] for step in steps})} version(s)"


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the platform is")
    parser.add_argument("--key", required=True, help="a key of an agent of the project")
    parser.add_argument(
        "--model", type=Path, default=MODEL, help="the folder whose tokenizer.json the engine's model has"
    )
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--tries", type=int, default=4, help="tries at each task")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    main()
