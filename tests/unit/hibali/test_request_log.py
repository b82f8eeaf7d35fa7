"""Test what is shown of URLs in logs."""

from __future__ import annotations

import pytest

from hibali.request_log import shown_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://s3.test/b?list-type=2&prefix=a%2Fb", "https://s3.test/b?list-type=2&prefix=a%2Fb"),
        (
            "https://s3.test/b/k?X-Amz-Signature=PLANTED&x-id=GetObject",
            "https://s3.test/b/k?X-Amz-Signature=***&x-id=***",
        ),
        ("https://me:PLANTED@host.test:8443/a", "https://host.test:8443/a"),
        ("https://blob.test/a?PLANTED", "https://blob.test/a?***"),
        (
            "https://swift.test/a?temp_url_sig=PLANTED&temp_url_expires=1",
            "https://swift.test/a?temp_url_sig=***&temp_url_expires=***",
        ),
        (
            "https://portal.test/userfiles?cbrain_api_token=PLANTED&page=2",
            "https://portal.test/userfiles?cbrain_api_token=***&page=2",
        ),
        ("https://host.test/a#access_token=PLANTED", "https://host.test/a"),
        ("/a/b?uploads", "/a/b?uploads"),
    ],
)
def test_logins_and_values_of_a_query_are_hidden(url: str, shown: str) -> None:
    assert shown_url(url) == shown
