"""Where other workers reach a process."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mm2py.config.rest_settings import RestSettings
from mm2py_workers.rest_node import RestNode
from tests.certificates import PASSWORD, Authority

LOCAL_BROKER = [("127.0.0.1", 9092)]


def bound(props: dict[str, str]) -> tuple[str, str]:
    """Return scheme and host of the URL, and the address that is bound."""
    settings = RestSettings.of_flow_file({"listeners": "http://127.0.0.1:0", **props})
    node = RestNode.bind(settings, LOCAL_BROKER)
    address: str = node.internal.sock.getsockname()[0]
    node.internal.sock.close()
    url = urlsplit(node.url)
    return f"{url.scheme}://{url.hostname}", address


@pytest.mark.parametrize(
    ("props", "url", "address"),
    [
        ({}, "http://127.0.0.1", "127.0.0.1"),
        ({"internal.listener": "http://:0"}, "http://127.0.0.1", "0.0.0.0"),  # noqa: S104
        ({"internal.listener": "http://127.0.0.2:0"}, "http://127.0.0.2", "127.0.0.2"),
        # The name may be another address of this machine than the one towards the brokers.
        ({"rest.advertised.host.name": "worker-1"}, "http://worker-1", "0.0.0.0"),  # noqa: S104
    ],
)
def test_the_internal_listener_is_bound_to_the_address_that_is_advertised(
    props: dict[str, str], url: str, address: str
) -> None:
    assert bound(props) == (url, address)


@pytest.mark.parametrize(
    ("given", "scheme"),
    [({}, "https"), ({"internal.listener": "http://127.0.0.1:0"}, "http")],
)
def test_the_internal_listener_has_https_where_the_public_one_has_a_certificate_for_it(
    tmp_path: Path, given: dict[str, str], scheme: str
) -> None:
    authority = Authority()
    stores = {
        "keystore": authority.issue("worker").pkcs12(tmp_path / "own.p12"),
        "truststore": authority.truststore(tmp_path / "trust.p12"),
    }
    props = {"listeners": "https://127.0.0.1:0", **given}
    for name, file in stores.items():
        prefix = f"listeners.https.ssl.{name}"
        props |= {
            f"{prefix}.type": "PKCS12",
            f"{prefix}.location": str(file),
            f"{prefix}.password": PASSWORD,
        }
    assert bound(props)[0] == f"{scheme}://127.0.0.1"
