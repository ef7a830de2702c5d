"""Every Celery entry point. A task takes ids, calls one service, and alone decides between retry and fail."""
