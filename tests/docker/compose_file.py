"""The compose file as Python values, checked against the keys of the compose specification."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import yaml

ROOT: Final = Path(__file__).parents[2]

_TOP_KEYS = """name version include services networks volumes configs secrets models"""
TOP_KEYS: Final = frozenset(_TOP_KEYS.split())

_SERVICE_KEYS = """annotations attach blkio_config build cap_add cap_drop cgroup cgroup_parent command configs
container_name cpu_count cpu_percent cpu_period cpu_quota cpu_rt_period cpu_rt_runtime cpu_shares
cpus cpuset credential_spec depends_on deploy develop device_cgroup_rules devices dns dns_opt
dns_search domainname entrypoint env_file environment expose extends external_links extra_hosts
gpus group_add healthcheck hostname image init ipc isolation labels label_file links logging
mac_address mem_limit mem_reservation mem_swappiness memswap_limit models network_mode networks
oom_kill_disable oom_score_adj pid pids_limit platform ports post_start pre_stop privileged
profiles provider pull_policy pull_refresh_after read_only restart runtime scale secrets
security_opt shm_size stdin_open stop_grace_period stop_signal storage_opt sysctls tmpfs tty
ulimits use_api_socket user userns_mode uts volumes volumes_from working_dir"""
SERVICE_KEYS: Final = frozenset(_SERVICE_KEYS.split())


def load() -> Mapping[str, object]:
    """Read the file; anchors and merges are resolved by YAML."""
    return mapping(cast("object", yaml.safe_load((ROOT / "docker-compose.yml").read_text())))


def mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, dict)
    return cast("dict[str, object]", value)


def texts(value: object) -> list[str]:
    assert isinstance(value, list)
    return [str(item) for item in cast("list[object]", value)]
