"""Datasets and snapshots over REST."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.accounts.models import Role
from apps.core.serializers import (
    BeforeQuerySerializer,
    PageQuerySerializer,
    ProjectQuerySerializer,
    read_fields,
    show_page,
)
from apps.trajectories.api.rewards import sight_of
from apps.trajectories.api.serializers import TrajectorySerializer
from apps.trajectories.blindness import find_hidden
from apps.trajectories.datasets import queries, services
from apps.trajectories.datasets.api import serializers as shapes
from apps.trajectories.datasets.models import Dataset
from apps.trajectories.datasets.sources import add_found_to_dataset
from apps.trajectories.search.services import warn_of_strangers


class DatasetsView(APIView):
    """A project's datasets."""

    @extend_schema(
        operation_id="datasets_list", parameters=[PageQuerySerializer], responses=shapes.DatasetPageSerializer
    )
    def get(self, request: Request) -> Response:
        """List datasets, newest first."""
        query = read_fields(PageQuerySerializer, request.query_params)
        page = queries.list_datasets(find_project(caller_of(request), query.pop("project")), **query)
        return Response(show_page(shapes.DatasetSerializer, page))

    @extend_schema(
        parameters=[ProjectQuerySerializer],
        request=shapes.DatasetBodySerializer,
        responses={201: shapes.DatasetSerializer},
    )
    def post(self, request: Request) -> Response:
        """Make an empty dataset."""
        caller = caller_of(request)
        body = read_fields(shapes.DatasetBodySerializer, request.data)
        query = read_fields(ProjectQuerySerializer, request.query_params)
        project = find_project(caller, query["project"], role=Role.REVIEWER)
        dataset = services.create_dataset(project=project, caller=caller, **body)
        return Response(shapes.DatasetSerializer(dataset).data, status=status.HTTP_201_CREATED)


class DatasetView(APIView):
    """One dataset."""

    @extend_schema(responses=shapes.DatasetDetailSerializer)
    def get(self, request: Request, dataset_id: str) -> Response:
        """Return the dataset with sums over its trajectories."""
        caller = caller_of(request)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id)
        totals = shapes.TotalsSerializer(asdict(queries.read_totals(dataset, hidden=find_hidden(caller)))).data
        return Response({**shapes.DatasetSerializer(dataset).data, "totals": totals})

    @extend_schema(request=shapes.DatasetChangeSerializer, responses=shapes.DatasetSerializer)
    def patch(self, request: Request, dataset_id: str) -> Response:
        """Give the dataset another name or description."""
        caller = caller_of(request)
        body = read_fields(shapes.DatasetChangeSerializer, request.data)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id, role=Role.REVIEWER)
        services.describe_dataset(dataset=dataset, caller=caller, **body)
        return Response(shapes.DatasetSerializer(dataset).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, dataset_id: str) -> Response:
        """Delete a dataset that has no snapshot. Its trajectories stay."""
        caller = caller_of(request)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id, role=Role.TRAINER)
        services.delete_dataset(dataset=dataset, caller=caller)
        return Response(status=status.HTTP_204_NO_CONTENT)


class MembersView(APIView):
    """The trajectories of a dataset."""

    @extend_schema(parameters=[BeforeQuerySerializer], responses=shapes.MemberPageSerializer)
    def get(self, request: Request, dataset_id: str) -> Response:
        """List the dataset's trajectories, newest first."""
        caller = caller_of(request)
        query = read_fields(BeforeQuerySerializer, request.query_params)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id)
        page = queries.list_members(dataset, **query)
        return Response(show_page(TrajectorySerializer, page, **sight_of(caller)))

    @extend_schema(request=shapes.AdditionBodySerializer, responses=shapes.AddedSerializer)
    def post(self, request: Request, dataset_id: str) -> Response:
        """Add trajectories by their ids, or all that a search finds now. What is in it already stays as it is."""
        caller = caller_of(request)
        body = read_fields(shapes.AdditionBodySerializer, request.data)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id, role=Role.REVIEWER)
        warning = ""
        if body["query"] is not None:
            added = add_found_to_dataset(dataset=dataset, caller=caller, query=body["query"])
            warning = warn_of_strangers(project=dataset.project, query=body["query"])
        else:
            added = services.add_ids_to_dataset(dataset=dataset, caller=caller, ids=body["trajectories"])
        return Response({"n_added": added, "n_trajectories": _count(dataset), "warning": warning})


class RemovalView(APIView):
    """Taking trajectories out of a dataset."""

    @extend_schema(request=shapes.MembersBodySerializer, responses=shapes.RemovedSerializer)
    def post(self, request: Request, dataset_id: str) -> Response:
        """Take trajectories out. They stay in the pool, and in the snapshots that have them."""
        caller = caller_of(request)
        body = read_fields(shapes.MembersBodySerializer, request.data)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id, role=Role.REVIEWER)
        removed = services.remove_from_dataset(dataset=dataset, caller=caller, ids=body["trajectories"])
        return Response({"n_removed": removed, "n_trajectories": _count(dataset)})


class SnapshotsView(APIView):
    """The snapshots of a dataset."""

    @extend_schema(parameters=[BeforeQuerySerializer], responses=shapes.SnapshotPageSerializer)
    def get(self, request: Request, dataset_id: str) -> Response:
        """List the dataset's snapshots, newest first."""
        caller = caller_of(request)
        query = read_fields(BeforeQuerySerializer, request.query_params)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id)
        page = queries.list_snapshots(dataset, **query, hidden=find_hidden(caller))
        return Response(show_page(shapes.SnapshotSerializer, page))

    @extend_schema(request=shapes.SnapshotBodySerializer, responses={201: shapes.SnapshotSerializer})
    def post(self, request: Request, dataset_id: str) -> Response:
        """Freeze what the dataset holds now, with the rewards that it has now. It never changes again."""
        caller = caller_of(request)
        body = read_fields(shapes.SnapshotBodySerializer, request.data)
        dataset = services.find_dataset(caller=caller, dataset_id=dataset_id, role=Role.REVIEWER)
        snapshot = services.take_snapshot(dataset=dataset, caller=caller, note=body["note"])
        queries.hide_rewards([snapshot], hidden=find_hidden(caller))
        return Response(shapes.SnapshotSerializer(snapshot).data, status=status.HTTP_201_CREATED)


class SnapshotView(APIView):
    """One snapshot."""

    @extend_schema(responses=shapes.SnapshotSerializer)
    def get(self, request: Request, snapshot_id: str) -> Response:
        """Return the snapshot: what was selected, by whom, from which searches, with its sums and checksum."""
        caller = caller_of(request)
        snapshot = services.find_snapshot(caller=caller, snapshot_id=snapshot_id)
        queries.hide_rewards([snapshot], hidden=find_hidden(caller))
        return Response(shapes.SnapshotSerializer(snapshot).data)


class EntriesView(APIView):
    """What a snapshot holds."""

    @extend_schema(parameters=[shapes.AfterQuerySerializer], responses=shapes.EntryPageSerializer)
    def get(self, request: Request, snapshot_id: str) -> Response:
        """List the snapshot's trajectories with the rewards of that moment, in order of their ids."""
        caller = caller_of(request)
        query = read_fields(shapes.AfterQuerySerializer, request.query_params)
        snapshot = services.find_snapshot(caller=caller, snapshot_id=snapshot_id)
        page = queries.list_entries(snapshot, **query)
        items = shapes.EntrySerializer(page.items, many=True, context=sight_of(caller)).data
        return Response({"items": items, "next_after": page.next_after})


class DiffView(APIView):
    """What changed between two snapshots."""

    @extend_schema(parameters=[shapes.DiffQuerySerializer], responses=shapes.DiffPageSerializer)
    def get(self, request: Request, snapshot_id: str) -> Response:
        """List what this snapshot has, lacks or rewards otherwise than the snapshot `base`."""
        caller = caller_of(request)
        query = read_fields(shapes.DiffQuerySerializer, request.query_params)
        snapshot = services.find_snapshot(caller=caller, snapshot_id=snapshot_id)
        base = services.find_snapshot(caller=caller, snapshot_id=query.pop("base"))
        sight = sight_of(caller)
        page = queries.diff_snapshots(base, snapshot, **query, hidden=sight["hidden"])
        shown: dict[str, Any] = {"counts": queries.count_differences(base, snapshot, hidden=sight["hidden"])}
        shown["items"] = shapes.DifferenceSerializer(page.items, many=True, context=sight).data
        return Response({**shown, "next_after": page.next_after})


def _count(dataset: Dataset) -> int:
    """Return how many trajectories it has now: none when it has been deleted since."""
    return Dataset.objects.filter(pk=dataset.pk).values_list("n_trajectories", flat=True).first() or 0
