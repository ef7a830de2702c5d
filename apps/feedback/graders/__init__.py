"""Automatic judgements: rules, model judges, webhooks, what happened next, reward models. A grader's label is a label
like any other; docs/rewards.md tells how it counts.

    live trajectories, back-fills → Grading (one a version and trajectory) → running.py → a kind → labels
                                                                                 dry runs → results, no labels

| file | holds |
|---|---|
| `models` | graders, their versions, what is to be graded, back-fills, dry runs |
| `kinds` | the table of kinds: settings, source, and the function that grades |
| `subjects` | what a grader sees of a trajectory or a step |
| `rules`, `judging`, `webhooks`, `reward_models`, `plugins` | the kinds themselves; they know no tables |
| `services` | every change that people ask for |
| `running`, `writing` | the work: claims, tries, budgets, labels |
| `agreement` | how far a grader and people agree; pure |
"""
