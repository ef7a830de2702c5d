"""Addresses of the console's pages."""

from django.urls import URLPattern, path

from apps.console.views import agents, home, models, policies, runs, session, trajectories

urlpatterns: list[URLPattern] = [
    path("login", session.log_in, name="login"),
    path("logout", session.log_out, name="logout"),
    path("theme", session.set_theme, name="theme"),
    path("", home.projects, name="home"),
    path("x/<str:object_id>", home.short_link, name="short_link"),
    path("p/<slug:slug>/", home.home, name="project_home"),
    path("p/<slug:slug>/agents", agents.agents, name="agents"),
    path("p/<slug:slug>/agents/<slug:agent_slug>", agents.agent, name="agent"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/keys", agents.new_key, name="new_key"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/keys/<str:key_id>/first-call", agents.first_call, name="first_call"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/keys/<str:key_id>/off", agents.switch_key_off, name="switch_key_off"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/policies", policies.policies, name="agent_policies"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/capture", policies.change_capture, name="change_capture"),
    path("p/<slug:slug>/agents/<slug:agent_slug>/limits/<str:name>", policies.change_limits, name="change_limits"),
    path("p/<slug:slug>/trajectories", trajectories.trajectories, name="trajectories"),
    path("p/<slug:slug>/trajectories/<str:trajectory_id>", trajectories.trajectory, name="trajectory"),
    path("p/<slug:slug>/trajectories/<str:trajectory_id>/steps/<str:step_id>", trajectories.step_view, name="step"),
    path("p/<slug:slug>/trajectories/<str:trajectory_id>/labels", trajectories.label, name="label"),
    path("p/<slug:slug>/trajectories/<str:trajectory_id>/exclusion", trajectories.exclude, name="exclude"),
    path("p/<slug:slug>/labels/<str:label_id>/take-back", trajectories.take_back, name="take_back_label"),
    path("p/<slug:slug>/runs", runs.runs, name="runs"),
    path("p/<slug:slug>/runs/new", runs.new_run, name="new_run"),
    path("p/<slug:slug>/runs/<str:run_id>", runs.run, name="run"),
    path("p/<slug:slug>/runs/<str:run_id>/batches/<int:step>", runs.batch, name="batch"),
    path("p/<slug:slug>/runs/<str:run_id>/cancel", runs.cancel, name="cancel_run"),
    path("p/<slug:slug>/runs/<str:run_id>/resume", runs.resume, name="resume_run"),
    path("p/<slug:slug>/models", models.models, name="models"),
    path("p/<slug:slug>/models/<int:number>/promote", models.promote, name="promote"),
    path("p/<slug:slug>/models/roll-back", models.roll_back, name="roll_back"),
]
