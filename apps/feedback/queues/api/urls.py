"""Addresses of review queues, below /api/v1/."""

from django.urls import path

from apps.feedback.queues.api import views, work_views

urlpatterns = [
    path("review-queues", views.QueuesView.as_view(), name="api-review-queues"),
    path("review-queues/<str:queue_id>", views.QueueView.as_view(), name="api-review-queue"),
    path("review-queues/<str:queue_id>/items", views.ItemsView.as_view(), name="api-review-items"),
    path("review-queues/<str:queue_id>/next", work_views.NextView.as_view(), name="api-review-next"),
    path("review-queues/<str:queue_id>/results", views.ResultsView.as_view(), name="api-review-results"),
    path("review-queues/<str:queue_id>/ask-skipped", views.AskSkippedView.as_view(), name="api-review-ask-skipped"),
    path("review-queues/<str:queue_id>/close-stuck", views.CloseStuckView.as_view(), name="api-review-close-stuck"),
    path("review-queues/<str:queue_id>/dataset", views.DatasetView.as_view(), name="api-review-dataset"),
    path("review-queues/<str:queue_id>/events", views.EventsView.as_view(), name="api-review-events"),
    path("review-items/<str:item_id>", work_views.ItemView.as_view(), name="api-review-item"),
    path("review-items/<str:item_id>/ask-again", work_views.AskAgainView.as_view(), name="api-review-ask-again"),
    path("review-items/<str:item_id>/decide", work_views.DecideView.as_view(), name="api-review-decide"),
    path(
        "review-items/<str:item_id>/take-back", work_views.TakeBackDecisionView.as_view(), name="api-review-take-back"
    ),
    path("reviews/<str:review_id>", work_views.ReviewView.as_view(), name="api-review"),
    path("reviews/<str:review_id>/submit", work_views.SubmitView.as_view(), name="api-review-submit"),
    path("reviews/<str:review_id>/skip", work_views.SkipView.as_view(), name="api-review-skip"),
    path("reviews/<str:review_id>/requeue", work_views.RequeueView.as_view(), name="api-review-requeue"),
    path("reviews/<str:review_id>/undo", work_views.UndoView.as_view(), name="api-review-undo"),
]
