"""Sums to do, and the verifier that says how well they were done. Knows nothing of models or tokens."""

import random
import re
from dataclasses import dataclass

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Task:
    """One sum. `name` is the same wherever the same sum is asked: tries at it form a group."""

    left: int
    right: int

    @property
    def name(self) -> str:
        return f"{self.left}+{self.right}"

    @property
    def question(self) -> str:
        return f"What is {self.left} + {self.right}? Answer with the number."

    def judge(self, answer: str) -> float:
        """Return 1 when the last number of the answer is the sum, else 0. The agent never sees this."""
        numbers = _NUMBER.findall(answer)
        return float(bool(numbers) and int(numbers[-1]) == self.left + self.right)


def make_tasks(n_tasks: int, *, seed: int) -> list[Task]:
    """Return sums of two numbers below ten, the same for the same seed."""
    chance = random.Random(seed)
    return [Task(left=chance.randrange(1, 10), right=chance.randrange(1, 10)) for _ in range(n_tasks)]
