"""Allowed addresses of brokers, from a file, a request, or other brokers (advertised listeners).

Flow: address after DNS -> ``BrokerNetworks.allow`` -> connection or refusal;
``MM2PY_BROKER_NETWORKS`` is read once per process. Without it every address is allowed but those of
a machine's own services.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from mm2py.errors import ConfigError

NETWORKS_VARIABLE: Final = "MM2PY_BROKER_NETWORKS"

# Addresses where clouds hand out credentials; IPv4's are link-local, but for two.
_METADATA: Final = frozenset(
    {"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "100.100.100.200", "168.63.129.16"}
)


def is_of_machine_services(address: IPv4Address | IPv6Address) -> bool:
    """Whether only a machine's own services have such an address, as the one of credentials."""
    plain = _plain(address)
    return plain.is_link_local or str(plain) in _METADATA


@dataclass(frozen=True, slots=True)
class BrokerNetworks:
    """Networks that brokers may be in; empty: any, but for a machine's own services."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> "BrokerNetworks":
        """Read the variable: networks such as ``10.0.0.0/8``, separated by commas. ``ConfigError``:
        it names something else."""
        networks: list[IPv4Network | IPv6Network] = []
        for item in environ.get(NETWORKS_VARIABLE, "").split(","):
            if item.strip():
                try:
                    networks.append(ip_network(item.strip()))
                except ValueError as error:
                    raise ConfigError(
                        f"{NETWORKS_VARIABLE}: {error}",
                        remedy="name networks as 10.0.0.0/8,fd12::/16",
                    ) from None
        return cls(tuple(networks))

    def allow(self, host: str) -> bool:
        """Whether a broker may have this address, which is no name."""
        address = _plain(ip_address(host))
        if not self.networks:
            return not is_of_machine_services(address)
        return any(address in network for network in self.networks)


@cache
def broker_networks() -> BrokerNetworks:
    """Return those of this process; task hosts inherit its environment."""
    return BrokerNetworks.of(os.environ)


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address):
        # ::ffff:169.254.169.254 leads to the same service.
        return address.ipv4_mapped or address
    return address
