"""The keys of a process: what a mirror maker file, or ``worker.properties``, holds beside flows, clients and REST.

Flow: property texts -> ``parse_config(DriverOptions, ...)``; lint and docs/config.md read the same declarations.
"""

from typing import Annotated

from mm2py.config.definitions import ConfigModel, Option
from mm2py.config.java_values import JavaType

__all__ = ["DriverOptions"]


class DriverOptions(ConfigModel):
    """What is read once per process (Java's ``MirrorMakerConfig``, and ours)."""

    clusters: Annotated[
        tuple[str, ...], Option(JavaType.LIST, "Aliases of the clusters.", importance="high")
    ] = ()
    dedicated_mode_enable_internal_rest: Annotated[
        bool,
        Option(
            JavaType.BOOLEAN,
            "Without effect: the nodes of one file always talk to each other, over internal.listener.",
        ),
    ] = False
    ssl_client_auth: Annotated[
        str,
        Option(
            JavaType.STRING,
            "Client certificates of https listeners; empty: none.",
            choices=("", "none", "requested", "required"),
            any_case=True,
        ),
    ] = "none"
    task_host_processes: Annotated[
        int | None,
        Option(
            JavaType.INT,
            "Processes that tasks are spread over, started on need; one per core by default, 0: they run"
            " in the worker's own. They are forked by a process of ours that has loaded everything once (a third one"
            " in `ps`). A flow of one task uses one; all together take 100 to 150 MB.",
            low=0,
            high=1_000,
            ours=True,
        ),
    ] = None
    config_providers: Annotated[
        tuple[str, ...],
        Option(
            JavaType.LIST,
            "Names of config providers for `${name:...}`. Each has `config.providers.<name>.class` and"
            " `.param.<key>`: FileConfigProvider (`allowed.paths`), EnvVarConfigProvider (`allowlist.pattern`) or"
            " DirectoryConfigProvider (`allowed.paths`), by Java's class names.",
        ),
    ] = ()
