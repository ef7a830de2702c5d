"""Graders over REST: kinds, graders and their versions, dry runs, switching on and off, back-fills, agreement."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from apps.accounts.access import find_project
from apps.accounts.api.authentication import caller_of
from apps.core.serializers import ProjectQuerySerializer, read_fields
from apps.feedback.api.bulk_serializers import BulkJobSerializer
from apps.feedback.graders import services
from apps.feedback.graders.api.serializers import (
    BackfillBodySerializer,
    BackfillSerializer,
    DryRunBodySerializer,
    DryRunSerializer,
    GraderAgreementSerializer,
    GraderBodySerializer,
    GraderKindsSerializer,
    GraderSerializer,
    GradersSerializer,
    GraderVersionSerializer,
    GraderVersionsSerializer,
    NewGraderSerializer,
    SecretSerializer,
    VersionBodySerializer,
)
from apps.feedback.graders.backfilling import read_progress
from apps.feedback.graders.kinds import KINDS, Kind
from apps.feedback.graders.models import Backfill, Grader, GraderVersion
from apps.feedback.graders.people import read_agreement
from apps.feedback.graders.services import VersionDraft
from apps.feedback.graders.taking_back import take_back_all
from apps.feedback.graders.trying import hide_results
from apps.trajectories.blindness import find_hidden

LISTED = 100


class GraderKindsView(APIView):
    """What graders there can be."""

    @extend_schema(operation_id="grader_kinds_list", responses=GraderKindsSerializer)
    def get(self, _request: Request) -> Response:
        """List the kinds with their settings."""
        return Response({"items": [_show_kind(kind) for kind in KINDS.values()]})


def _show_kind(kind: Kind) -> dict[str, Any]:
    shown = {"name": kind.name, "words": kind.words, "help": kind.help, "source": kind.source}
    return {**shown, "settings": kind.settings.model_json_schema()}


class GradersView(APIView):
    """The graders of a project."""

    @extend_schema(operation_id="graders_list", parameters=[ProjectQuerySerializer], responses=GradersSerializer)
    def get(self, request: Request) -> Response:
        """List the graders by name, archived ones last."""
        project = find_project(caller_of(request), read_fields(ProjectQuerySerializer, request.query_params)["project"])
        return Response({"items": GraderSerializer(services.list_graders(project)[:LISTED], many=True).data})

    @extend_schema(
        parameters=[ProjectQuerySerializer], request=GraderBodySerializer, responses={201: NewGraderSerializer}
    )
    def post(self, request: Request) -> Response:
        """Make a grader, switched off. A webhook's secret is in the answer, this once."""
        caller = caller_of(request)
        project = find_project(caller, read_fields(ProjectQuerySerializer, request.query_params)["project"])
        body = read_fields(GraderBodySerializer, request.data)
        name, kind = body.pop("name"), body.pop("kind")
        version, secret = services.create_grader(
            caller=caller, project=project, name=name, kind=kind, draft=VersionDraft(**body)
        )
        shown = {**GraderSerializer(version.grader).data, "version": GraderVersionSerializer(version).data}
        return Response({**shown, "secret": secret}, status=status.HTTP_201_CREATED)


class GraderView(APIView):
    """One grader."""

    @extend_schema(responses=GraderSerializer)
    def get(self, request: Request, grader_id: str) -> Response:
        """Return the grader and which version is switched on."""
        return Response(GraderSerializer(_find(request, grader_id)).data)


class GraderVersionsView(APIView):
    """The versions of a grader."""

    @extend_schema(operation_id="grader_versions_list", responses=GraderVersionsSerializer)
    def get(self, request: Request, grader_id: str) -> Response:
        """List the versions, the newest first."""
        rows = services.list_versions(_find(request, grader_id))[:LISTED]
        return Response({"items": GraderVersionSerializer(rows, many=True).data})

    @extend_schema(request=VersionBodySerializer, responses={201: GraderVersionSerializer})
    def post(self, request: Request, grader_id: str) -> Response:
        """Make a new version; the one that is switched on stays so until another is."""
        grader = _find(request, grader_id)
        draft = VersionDraft(**read_fields(VersionBodySerializer, request.data))
        version = services.add_version(caller=caller_of(request), grader=grader, draft=draft)
        return Response(GraderVersionSerializer(version).data, status=status.HTTP_201_CREATED)


class DryRunsView(APIView):
    """Trying a version."""

    @extend_schema(request=DryRunBodySerializer, responses={202: DryRunSerializer})
    def post(self, request: Request, grader_id: str, number: int) -> Response:
        """Try the version on a sample in the background: half of it, if possible, are things that people judged."""
        version = _find_version(request, grader_id, number)
        n_wanted = read_fields(DryRunBodySerializer, request.data)["n"]
        dry_run = services.start_dry_run(caller=caller_of(request), version=version, n_wanted=n_wanted)
        return Response(DryRunSerializer(dry_run).data, status=status.HTTP_202_ACCEPTED)


class DryRunView(APIView):
    """One dry run."""

    @extend_schema(responses=DryRunSerializer)
    def get(self, request: Request, dry_run_id: str) -> Response:
        """Return what the version would have said, once the dry run is done."""
        caller = caller_of(request)
        dry_run = services.find_dry_run(caller=caller, dry_run_id=dry_run_id)
        return Response(DryRunSerializer(hide_results(dry_run, hidden=find_hidden(caller))).data)


class SwitchOnView(APIView):
    """Putting a version to work."""

    @extend_schema(request=None, responses=GraderSerializer)
    def post(self, request: Request, grader_id: str, number: int) -> Response:
        """Have the version grade what is completed from now on. It must have been tried."""
        version = _find_version(request, grader_id, number)
        return Response(GraderSerializer(services.switch_on(caller=caller_of(request), version=version)).data)


class SwitchOffView(APIView):
    """Putting a grader to rest."""

    @extend_schema(request=None, responses=GraderSerializer)
    def post(self, request: Request, grader_id: str) -> Response:
        """Have the grader grade nothing new; its labels stay."""
        grader = _find(request, grader_id)
        return Response(GraderSerializer(services.switch_off(caller=caller_of(request), grader=grader)).data)


class ArchiveView(APIView):
    """Putting a grader away."""

    @extend_schema(request=None, responses=GraderSerializer)
    def post(self, request: Request, grader_id: str) -> Response:
        """Switch the grader off and put it away: it does not count to those a project may have. Its labels stay."""
        grader = _find(request, grader_id)
        return Response(GraderSerializer(services.archive_grader(caller=caller_of(request), grader=grader)).data)


class RestoreView(APIView):
    """Taking a grader out of the archive."""

    @extend_schema(request=None, responses=GraderSerializer)
    def post(self, request: Request, grader_id: str) -> Response:
        """Have the grader back, switched off."""
        grader = _find(request, grader_id)
        return Response(GraderSerializer(services.restore_grader(caller=caller_of(request), grader=grader)).data)


class TakeBackView(APIView):
    """The undo of all that a grader said."""

    @extend_schema(request=None, responses={202: BulkJobSerializer})
    def post(self, request: Request, grader_id: str) -> Response:
        """Take back, in the background, all that the grader's versions say; a bulk job, which can be undone."""
        job = take_back_all(caller=caller_of(request), grader=_find(request, grader_id))
        return Response(BulkJobSerializer(job).data, status=status.HTTP_202_ACCEPTED)


class AgreementView(APIView):
    """A version beside people."""

    @extend_schema(responses=GraderAgreementSerializer)
    def get(self, request: Request, grader_id: str, number: int) -> Response:
        """Return how far the version's newest labels and people's agree."""
        version = _find_version(request, grader_id, number)
        return Response(asdict(read_agreement(version, hidden=find_hidden(caller_of(request)))))


class SecretView(APIView):
    """The secret of a webhook."""

    @extend_schema(request=None, responses={201: SecretSerializer})
    def post(self, request: Request, grader_id: str) -> Response:
        """Make a new secret; calls are signed with it from now on. It is shown only now."""
        secret = services.renew_secret(caller=caller_of(request), grader=_find(request, grader_id))
        return Response({"secret": secret}, status=status.HTTP_201_CREATED)


class BackfillsView(APIView):
    """Grading what is in the pool already."""

    @extend_schema(request=BackfillBodySerializer, responses={202: BackfillSerializer})
    def post(self, request: Request, grader_id: str, number: int) -> Response:
        """Grade in the background what a query finds now. The version must have been tried."""
        version = _find_version(request, grader_id, number)
        query = read_fields(BackfillBodySerializer, request.data)["query"]
        backfill = services.start_backfill(caller=caller_of(request), version=version, query=query)
        return Response(_show_backfill(request, backfill), status=status.HTTP_202_ACCEPTED)


class BackfillView(APIView):
    """One back-fill."""

    @extend_schema(responses=BackfillSerializer)
    def get(self, request: Request, backfill_id: str) -> Response:
        """Return how far it is."""
        found = services.find_backfill(caller=caller_of(request), backfill_id=backfill_id)
        return Response(_show_backfill(request, found))


class CancelBackfillView(APIView):
    """The end of a back-fill."""

    @extend_schema(request=None, responses=BackfillSerializer)
    def post(self, request: Request, backfill_id: str) -> Response:
        """Stop it; what it graded stays."""
        caller = caller_of(request)
        backfill = services.find_backfill(caller=caller, backfill_id=backfill_id)
        return Response(_show_backfill(request, services.cancel_backfill(caller=caller, backfill=backfill)))


def _show_backfill(request: Request, backfill: Backfill) -> dict[str, Any]:
    progress = read_progress(backfill, hidden=find_hidden(caller_of(request)))
    setattr(backfill, "progress", progress)  # noqa: B010 (not a column)
    return dict(BackfillSerializer(backfill).data)


def _find(request: Request, grader_id: str) -> Grader:
    return services.find_grader(caller=caller_of(request), grader_id=grader_id)


def _find_version(request: Request, grader_id: str, number: int) -> GraderVersion:
    return services.find_version(_find(request, grader_id), number)
