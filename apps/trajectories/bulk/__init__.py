"""One change to many trajectories: a job with progress, a list of what failed, and one undo for all of it.

`actions` are the changes and how each is taken back, `models` the jobs and what they changed, `services` start and undo
them, `running` does the work piece by piece (a Celery task calls it) and clears away what nobody can undo any more.
"""
