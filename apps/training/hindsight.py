"""What hindsight distillation takes from the pool: fresh answers of which somebody said what would have been better.

A reward, where there is one, is added to what the hints say; a missing one adds nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from apps.training.batching import DiscardReason
from apps.training.collecting import Collected, Facts, Lent, make_sample, name_discards, usable_steps
from apps.training.estimators import BaselineState
from apps.training.hints import list_hints, tell_with_hint
from apps.training.recipes import RecipeConfig
from apps.trajectories.models import Trajectory


def read_hint_facts(rows: Sequence[Trajectory]) -> dict[str, Facts]:
    """Return by trajectory id the words that stand for its steps."""
    return {row_id: Facts(hints=dict(hints)) for row_id, hints in list_hints([row.id for row in rows]).items()}


def collect_hinted(lent: Lent, *, recipe: RecipeConfig, baseline: BaselineState, line: Mapping[str, int]) -> Collected:
    """Return the steps with their hints and rewards, and those left out by reason. `baseline` stays as it is."""
    discards: Counter[DiscardReason] = Counter()
    samples, distances = [], []
    for row in lent.trajectories:
        hints, reward = lent.facts[row.id].hints, lent.rewards[row.id] or 0.0
        views = usable_steps(row, lent, recipe=recipe, line=line, discards=discards, with_messages=True)
        for view in views:
            words = hints.get(view.row.id)
            sample = make_sample(view, advantage=recipe.own("reward_weight") * reward)
            if words:
                sample = replace(sample, hint=tell_with_hint(view, words, project_id=row.project_id))
            elif sample.advantage == 0:
                discards[DiscardReason.NO_SIGNAL] += 1
                continue
            samples.append(sample)
            distances.append(line[view.row.version_id or ""])
    return Collected(
        samples=samples,
        discards=name_discards(discards),
        staleness=sum(distances) / max(1, len(distances)),
        baseline=baseline,
    )
