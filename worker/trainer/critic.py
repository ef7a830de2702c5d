"""The critic of step-level PPO: what a turn is worth before it is played, and the advantages that follow.

A turn is one model call. Its value is read where its answer begins, off the policy's own last layer by a linear head;
a trajectory's turns stand in the batch in their order. Advantages are not centred over turns: first and last turns
differ in what is still to come, and one mean for both would push first turns of successes down.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apps.core.contracts.training import CriticSettings, TrainJob, TrainSample
from worker.trainer.errors import BatchError
from worker.trainer.micro_batches import MicroBatch, build_filler, build_micro_batch, plan_micro_batches
from worker.trainer.model import Policy, load_policy, prepare_model
from worker.trainer.ranks import Ranks
from worker.trainer.tries import Targets, Trie
from worker.trainer.tuning import load_base, load_model


class ActorCritic(Policy):
    """A policy that also says what it expects. The head starts at zero: nothing is expected."""

    def __init__(self, model: Any, *, precision: str, base_model_dir: str) -> None:
        super().__init__(model, precision=precision, load_reference=lambda: load_base(base_model_dir))
        self.value_head = nn.Linear(model.config.hidden_size, 1)
        nn.init.zeros_(self.value_head.weight)
        nn.init.zeros_(self.value_head.bias)

    def forward(self, *, trie: Trie, targets: Targets) -> tuple[Tensor, ...]:
        """Return log-probs and entropies of `targets`, and the values of what came before each; (N,)."""
        seen: list[Tensor] = []

        def look(_layer: Any, inputs: tuple[Tensor, ...]) -> None:
            seen.append(inputs[0][0, targets.nodes])  # (R, E)

        hook = self.model.get_output_embeddings().register_forward_pre_hook(look)
        try:
            logprobs, entropies = super().forward(trie=trie, targets=targets)
        finally:
            hook.remove()
        values = self.value_head(seen[0].float()).squeeze(-1)  # (R,)
        return logprobs, entropies, values[targets.rows]


def load_actor(job: TrainJob) -> Policy:
    """Return the policy that the job starts from, with a critic where it asks for one."""
    if job.critic is None:
        return load_policy(job)
    return ActorCritic(prepare_model(load_model(job), job), precision=job.precision, base_model_dir=job.base_model_dir)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a turn was held to be worth before the step's first update, and what came of it."""

    value: float
    actual: float


@dataclass(frozen=True, kw_only=True)
class Turns:
    """The turns of a micro-batch; (B,) each. `firsts`: the place of each one's first token among the N.

    `n_all`: turns of the whole optimizer step, over which the critic's loss is a mean.
    """

    n_all: int
    firsts: Tensor
    values: Tensor
    actuals: Tensor


def estimate_advantages(rewards: Sequence[float], values: Sequence[float], *, critic: CriticSettings) -> list[float]:
    """Return A_t = sum_k (gamma lambda)^k delta_{t+k} of a trajectory's turns, delta_t = r_t + gamma V_{t+1} - V_t.

    GAE (arXiv 1506.02438), eq. 16; behind the last turn nothing is expected.
    """
    advantages: list[float] = []
    later, next_value = 0.0, 0.0
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        surprise = reward + critic.turn_discount * next_value - value
        later = surprise + critic.turn_discount * critic.gae_lambda * later
        next_value = value
        advantages.append(later)
    return advantages[::-1]


def value_loss(values: Tensor, turns: Turns, *, clip: float) -> Tensor:
    """Return max((V - R)^2, (clip(V, V_old - eps, V_old + eps) - R)^2) / 2 of each turn (B,).

    PPO's value loss with clipping, as its reference implementation has it (arXiv 1707.06347; 2005.12729, section 3).
    """
    near = turns.values + (values - turns.values).clamp(-clip, clip)
    return torch.maximum((values - turns.actuals).square(), (near - turns.actuals).square()) / 2


def assess_turns(
    engine: Any, samples: Sequence[TrainSample], *, critic: CriticSettings, job: TrainJob, ranks: Ranks
) -> tuple[list[TrainSample], Mapping[str, Expected]]:
    """Return the samples with their advantages, and what was expected of each by its step id. Raises BatchError."""
    values = _read_values(engine, samples, job=job, ranks=ranks)
    by_trajectory: dict[str, list[int]] = defaultdict(list)
    for place, sample in enumerate(samples):
        by_trajectory[sample.trajectory_id].append(place)
    assessed, expected = list(samples), {}
    for places in by_trajectory.values():
        rewards = [_find_reward(samples[place]) for place in places]
        advantages = estimate_advantages(rewards, [values[place] for place in places], critic=critic)
        for place, advantage in zip(places, advantages, strict=True):
            assessed[place] = dataclasses.replace(samples[place], advantage=advantage)
            expected[samples[place].step_id] = Expected(value=values[place], actual=values[place] + advantage)
    return assessed, expected


def _find_reward(turn: TrainSample) -> float:
    if turn.reward is None:  # missing is not zero
        raise BatchError(f"Sample {turn.step_id} says nothing of what came of it, and a critic judges turns by that.")
    return turn.reward


def _read_values(engine: Any, samples: Sequence[TrainSample], *, job: TrainJob, ranks: Ranks) -> list[float]:
    places = {sample.step_id: place for place, sample in enumerate(samples)}
    plans = plan_micro_batches(samples, max_tokens=job.max_tokens_per_microbatch, n_ranks=ranks.count)
    found = torch.zeros(len(samples), dtype=torch.float64, device=ranks.device)
    with torch.no_grad():
        for group in plans[ranks.index]:
            micro = build_micro_batch(group, weights=dict.fromkeys(places, 0.0)) if group else build_filler()
            micro = micro.to(ranks.device)
            _, _, values = engine(trie=micro.trie, targets=micro.targets)
            for sample, value in zip(group, values[find_firsts(micro)].tolist(), strict=True):
                found[places[sample.step_id]] = value
    values_of_all: list[float] = ranks.add_up(found).tolist()
    return values_of_all


def find_firsts(micro: MicroBatch) -> Tensor:
    """Return the place of each sample's first token among all of them, (B,)."""
    begins = torch.ones_like(micro.samples, dtype=torch.bool)
    begins[1:] = micro.samples[1:] != micro.samples[:-1]
    return begins.nonzero().flatten()


def gather_turns(
    micro: MicroBatch, group: Sequence[TrainSample], expected: Mapping[str, Expected], *, n_turns: int
) -> Turns:
    """Return the turns of a micro-batch that was built of `group`."""
    known = [expected[sample.step_id] for sample in group]
    device = micro.samples.device
    return Turns(
        n_all=n_turns,
        firsts=find_firsts(micro),
        values=torch.tensor([each.value for each in known], device=device),
        actuals=torch.tensor([each.actual for each in known], device=device),
    )
