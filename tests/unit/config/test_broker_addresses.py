"""Which addresses a worker connects to, behind DNS."""

import pytest

from mm2py.config.broker_addresses import NETWORKS_VARIABLE, BrokerNetworks
from mm2py.errors import ConfigError

SERVICES = [
    "169.254.169.254",
    "169.254.170.2",
    "::ffff:169.254.169.254",
    "fe80::1%eth0",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
]


@pytest.mark.parametrize("address", SERVICES)
def test_no_broker_has_an_address_of_a_machines_own_services(address: str) -> None:
    assert not BrokerNetworks().allow(address)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "8.8.8.8", "::1", "fd12::7"])
def test_any_other_address_may_be_a_brokers(address: str) -> None:
    assert BrokerNetworks().allow(address)


def test_with_a_list_only_its_networks_are_connected_to() -> None:
    networks = BrokerNetworks.of({NETWORKS_VARIABLE: "10.0.0.0/8, fd12::/16,169.254.7.0/24,"})
    for address in ("10.1.2.3", "::ffff:10.1.2.3", "fd12::7", "169.254.7.9"):
        assert networks.allow(address)
    for address in ("127.0.0.1", "11.0.0.1", "::1", "169.254.169.254"):
        assert not networks.allow(address)


@pytest.mark.parametrize("text", ["10.0.0.0/33", "kafka", "10.0.0.1/8"])
def test_a_list_that_names_no_network_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=NETWORKS_VARIABLE):
        BrokerNetworks.of({NETWORKS_VARIABLE: text})
