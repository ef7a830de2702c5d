"""Names and queues of the background tasks. Apps queue by name after commit; only the worker knows the code."""

TRAIN_RUN = "claw.train_run"
REFRESH_VERSION = "claw.refresh_version"
RECONCILE_ENGINES = "claw.reconcile_engines"
CLOSE_IDLE_TRAJECTORIES = "claw.close_idle_trajectories"
RESCUE_RUNS = "claw.rescue_runs"
RUN_BULK_JOB = "claw.run_bulk_job"
TEND_BULK_JOBS = "claw.tend_bulk_jobs"
RUN_EXPORT = "claw.run_export"
RUN_IMPORT = "claw.run_import"
TEND_TRANSFERS = "claw.tend_transfers"
KEEP_MONTHS = "claw.keep_months"
REMOVE_VERSION_FILES = "claw.remove_version_files"
FILL_QUEUE = "claw.fill_queue"
TEND_QUEUES = "claw.tend_queues"
GRADE_TRAJECTORIES = "claw.grade_trajectories"
RUN_DRY_RUN = "claw.run_dry_run"
FILL_BACKFILL = "claw.fill_backfill"
TEND_GRADERS = "claw.tend_graders"

QUEUE_CPU = "cpu"
QUEUE_GRADE = "grade"  # apart from quick work: a judge's engine may take minutes to answer
QUEUE_TRAIN = "train"
QUEUE_REFRESH = "refresh"
QUEUE_RECONCILE = "reconcile"  # apart from refreshes: to verify a version takes as long as its engines take

ROUTES: dict[str, str] = {
    TRAIN_RUN: QUEUE_TRAIN,
    REFRESH_VERSION: QUEUE_REFRESH,
    RECONCILE_ENGINES: QUEUE_RECONCILE,
    CLOSE_IDLE_TRAJECTORIES: QUEUE_CPU,
    RESCUE_RUNS: QUEUE_CPU,
    RUN_BULK_JOB: QUEUE_CPU,
    TEND_BULK_JOBS: QUEUE_CPU,
    RUN_EXPORT: QUEUE_CPU,
    RUN_IMPORT: QUEUE_CPU,
    TEND_TRANSFERS: QUEUE_CPU,
    KEEP_MONTHS: QUEUE_CPU,
    REMOVE_VERSION_FILES: QUEUE_CPU,
    FILL_QUEUE: QUEUE_CPU,
    TEND_QUEUES: QUEUE_CPU,
    GRADE_TRAJECTORIES: QUEUE_GRADE,
    RUN_DRY_RUN: QUEUE_GRADE,
    FILL_BACKFILL: QUEUE_CPU,
    TEND_GRADERS: QUEUE_CPU,
}
