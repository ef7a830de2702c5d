"""From a queue to a dataset: what was reviewed and agreed on (or decided) goes where runs learn from."""

from apps.accounts.access import Caller
from apps.core.errors import InvalidInput, NotFound
from apps.feedback.queues.events import record_event
from apps.feedback.queues.models import ItemState, QueueItem, ReviewQueue
from apps.trajectories.datasets.models import AddedBy, Dataset
from apps.trajectories.datasets.services import add_to_dataset
from apps.trajectories.models import Trajectory

READY = (ItemState.DONE, ItemState.DECIDED)


def add_reviewed_to_dataset(*, caller: Caller, queue: ReviewQueue, dataset: Dataset) -> int:
    """Add the trajectories of all items that are done or decided; returns how many are new in the dataset.

    Raises NotFound for another project's dataset, InvalidInput when nothing is ready, Forbidden for viewers.
    """
    if dataset.project_id != queue.project_id:
        raise NotFound(f"this project has no dataset {dataset.pk!r}", field="dataset")
    ready = QueueItem.objects.filter(queue=queue, state__in=READY).present()
    if not ready.exists():
        raise InvalidInput("no item has all its reviews yet, or they disagree: decide those first", field="dataset")
    ids = {pk for pair in ready.values_list("trajectory_id", "other_id") for pk in pair if pk}
    added = add_to_dataset(
        dataset=dataset,
        caller=caller,
        trajectories=Trajectory.objects.filter(pk__in=ids),
        how=AddedBy.HAND,
    )
    record_event(queue, kind="collected", actor=caller.name)
    return added
