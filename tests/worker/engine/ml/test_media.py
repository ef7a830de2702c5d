"""What vLLM itself makes of the hosts that it is told: nothing is asked of an address that none of them is."""

import pytest
from vllm.multimodal.media.connector import MediaConnector

from worker.engine.launch import NO_MEDIA_DOMAIN

PIXEL = "data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


def test_without_hosts_only_images_in_the_request_are_read() -> None:
    connector = MediaConnector(allowed_media_domains=[NO_MEDIA_DOMAIN])
    for address in (
        "http://127.0.0.1:9/is_sleeping",
        "https://example.com/a.png",
        "http://[::1]:9/",
        "file:///etc/hosts",
    ):
        with pytest.raises((ValueError, RuntimeError), match=r"allowed domains|allowed-local-media-path"):
            connector.fetch_image(address)
    assert connector.fetch_image(PIXEL).media.size == (1, 1)
