"""Token rows as Arrow and Parquet. Errors stay JSON, in whatever form the answer was asked for."""

import json
from collections.abc import Mapping
from typing import Any

from rest_framework.renderers import BaseRenderer

from apps.trajectories.datasets.row_files import to_arrow_stream, to_parquet


class _RowsRenderer(BaseRenderer):
    charset = None
    render_style = "binary"

    def render(
        self,
        data: Any,
        accepted_media_type: str | None = None,  # noqa: ARG002 (DRF's signature)
        renderer_context: Mapping[str, Any] | None = None,
    ) -> bytes:
        response = (renderer_context or {}).get("response")
        if response is not None and response.status_code >= 400:
            return json.dumps(data).encode()
        return self.pack(data)

    def pack(self, data: Any) -> bytes:
        raise NotImplementedError


class ArrowRenderer(_RowsRenderer):
    media_type = "application/vnd.apache.arrow.stream"
    format = "arrow"

    def pack(self, data: Any) -> bytes:
        return to_arrow_stream(data["items"], shape=data["shape"])


class ParquetRenderer(_RowsRenderer):
    media_type = "application/vnd.apache.parquet"
    format = "parquet"

    def pack(self, data: Any) -> bytes:
        return to_parquet(data["items"], shape=data["shape"])
