"""Puts a published version on the engines, checks that they compute what the trainer computed, and lets it speak.

Calls in flight are not touched: they finish with the weights with which they began, under an adapter's own name or
before a whole model takes the place of another (see deployments.py).
"""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from apps.core.contracts.checksum import hash_folder
from apps.core.errors import Conflict, ServiceError
from apps.registry import services
from apps.registry.client import EngineClient, EngineNonsense, EngineRefused, EngineUnreachable
from apps.registry.deployments import load_version, unload_version
from apps.registry.models import (
    Alias,
    AliasName,
    Deployment,
    DeploymentState,
    Engine,
    EngineState,
    Policy,
    Version,
    VersionState,
)
from apps.registry.verification import (
    TOLERANCES,
    Report,
    Tolerance,
    VerificationFailed,
    choose_positions,
    compare_logprobs,
)

log = structlog.get_logger(__name__)


def refresh_version(version: Version) -> None:
    """Load the version on every engine of its base model, verify it and mark it READY, or FAILED with the reason.

    Engines that do not answer are left to `reconcile`; when none answers the version stays PUBLISHED and waits.
    Safe to repeat, and to run twice at once.
    """
    if version.state != VersionState.PUBLISHED:
        return
    started = time.monotonic()
    try:
        check_files(version)
        reports = verify_on_engines(version)
    except EngineUnreachable as error:
        services.note_delay(version, reason=error.message)
        if version.is_whole:
            put_live_back(version)
        return
    except (VerificationFailed, EngineRefused, EngineNonsense) as error:
        log.warning("version.failed", version=version.id, reason=error.message)
        services.mark_failed(version, error=error.message)
        withdraw_version(version)
        return
    verification = summarise(reports) | {"seconds": round(time.monotonic() - started, 3)}
    services.mark_ready(version, verification=verification)
    log.info("version.ready", version=version.id, mean_abs_diff=verification["mean_abs_diff"])
    if version.is_whole:
        put_live_back(version)


def check_files(version: Version) -> None:
    """Raise VerificationFailed unless the adapter's files are those that the trainer wrote."""
    try:
        found = hash_folder(Path(version.adapter_path))
    except OSError as error:
        raise VerificationFailed(f"the version's files cannot be read: {error}") from error
    if found != version.sha256:
        raise VerificationFailed("the version's files changed since they were published: their checksum differs")


def verify_on_engines(version: Version) -> list[Report]:
    """Return one report for each engine that answered, at least one.

    Raises EngineUnreachable when none did, and VerificationFailed and others as soon as one engine shows a fault.
    """
    reports, last_error = [], f"no engine that serves {version.policy.base_model} is up"
    for engine in serving_engines(version.policy):
        try:
            with EngineClient(engine.base_url) as client:
                reports.append(verify_on_engine(version, engine, client=client))
        except EngineUnreachable as error:
            last_error = error.message
            log.warning("version.engine_away", version=version.id, engine=engine.id, reason=error.message)
    if not reports:
        raise EngineUnreachable(last_error)
    return reports


def serving_engines(policy: Policy) -> list[Engine]:
    """Return the engines that are up and have the policy's base weights."""
    up = Engine.objects.replicas().filter(is_enabled=True, state=EngineState.UP)
    return list(up.filter(base_model=policy.base_model))


def verify_on_engine(version: Version, engine: Engine, *, client: EngineClient) -> Report:
    """Load the version on one engine, compare the probe and ask a canary question."""
    load_version(engine, version, client=client)
    expected, likely_ids = version.probe["logprobs"], version.probe["likely_ids"]
    positions = choose_positions(expected)
    wanted = [(position, likely_ids[position]) for position in positions]
    found = client.probe_logprobs(version.engine_name, version.probe["token_ids"], wanted)
    asked = [expected[position] for position in positions]
    report = compare_logprobs(asked, found, tolerance=engine_tolerance(), engine_id=engine.id)
    canary = client.ask_canary(version.engine_name)
    return Report(**{**asdict(report), "canary": canary})


def engine_tolerance() -> Tolerance:
    """Return what the engines' number format allows."""
    return TOLERANCES[settings.CLAW.engine_dtype]


def summarise(reports: list[Report]) -> dict[str, Any]:
    """Return what is stored with the version: the worst engine's figures, the tolerance, and each report."""
    tolerance = engine_tolerance()
    worst = max(reports, key=lambda report: report.mean_abs_diff)
    return {
        "mean_abs_diff": worst.mean_abs_diff,
        "max_abs_diff": max(report.max_abs_diff for report in reports),
        "n_tokens": worst.n_tokens,
        "engine_id": worst.engine_id,
        "tolerance": asdict(tolerance),
        "engines": [asdict(report) for report in reports],
    }


def withdraw_version(version: Version) -> None:
    """Take a version that failed off the engines; what does not answer is cleaned up by `reconcile`."""
    if version.is_whole:
        put_live_back(version)
        return
    for deployment in _loaded(version):
        try:
            with EngineClient(deployment.engine.base_url) as client:
                unload_version(deployment.engine, version, client=client)
        except ServiceError as error:
            log.warning("version.not_withdrawn", version=version.id, reason=error.message)


def put_live_back(version: Version) -> None:
    """Give engines that hold this whole model what live names, be it this one; `reconcile` comes after who is silent.

    Where it was only verified, it stands in the place of weights that have calls to answer.
    """
    live = services.find_live_version(version.policy)
    for deployment in _loaded(version):
        try:
            with EngineClient(deployment.engine.base_url) as client:
                load_version(deployment.engine, live, client=client)
        except ServiceError as error:
            log.warning("version.not_put_back", version=live.id, engine=deployment.engine_id, reason=error.message)


def _loaded(version: Version) -> list[Deployment]:
    rows = Deployment.objects.filter(version=version, state=DeploymentState.LOADED)
    return list(rows.select_related("engine"))


def move_alias(*, policy: Policy, alias: AliasName, version: Version, actor: str) -> Alias:
    """Point an alias at a version by a person's wish: on the engines first, then switched. So is the way back.

    Raises Conflict when no engine has the version, since calls would then find nothing, and InvalidInput for another
    policy's version, before any engine is touched.
    """
    services.check_pointing(policy, alias, version)
    if version.state == VersionState.READY:
        _load_where_missing(version)
    with transaction.atomic():
        Policy.objects.select_for_update().get(pk=policy.pk)  # `reconcile` unloads under the same lock
        if version.state == VersionState.READY and not _is_served(version):
            raise Conflict(f"no engine could load version {version.number}; see the engines' state", field="version")
        return services.switch_alias(policy=policy, alias=alias, version=version, actor=actor)


def _is_served(version: Version) -> bool:
    """Say whether an engine has it. Where none is up at all, base weights are what comes first."""
    engines = serving_engines(version.policy)
    if version.is_base:
        return not engines or any(engine.weights_id is None for engine in engines)
    return version.deployments.filter(state=DeploymentState.LOADED, engine__in=engines).exists()


def _load_where_missing(version: Version) -> None:
    for engine in serving_engines(version.policy):
        try:
            if not version.is_base:
                check_files(version)
            with EngineClient(engine.base_url) as client:
                load_version(engine, version, client=client)
        except ServiceError as error:
            log.warning("version.not_loaded", version=version.id, engine=engine.id, reason=error.message)
