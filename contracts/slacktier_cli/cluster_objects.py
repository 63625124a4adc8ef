# SPDX-License-Identifier: Apache-2.0
"""Our custom resources as a cluster's API server has them, read through a kubeconfig or a pod's own account."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from slacktier.crd import RESOURCES
from slacktier.crd_model import GROUP, VERSION
from slacktier.errors import ConfigError, SlackTierError

_CALL_S: Final = 10.0


class ClusterReader:
    """Lists; it needs `list` on our four kinds and nothing else.

    raises  ConfigError     no kubeconfig, or one that cannot be used; the client library is missing
    """

    def __init__(self, kubeconfig: Path | None = None) -> None:
        try:
            import kubernetes
            import yaml
        except ImportError as exc:
            raise ConfigError(f"{exc.name} is not installed", hint="pip install 'slacktier[operator]'") from exc
        try:
            load: Any = kubernetes.config.load_config  # has no types
            load(**({"config_file": str(kubeconfig)} if kubeconfig else {}))
        # A file that holds something else than a kubeconfig ends in whatever the library stumbles over.
        except (kubernetes.config.ConfigException, OSError, yaml.YAMLError, TypeError, AttributeError, KeyError) as exc:
            raise ConfigError(
                f"no cluster to ask: {str(exc).splitlines()[0] if str(exc) else type(exc).__name__}",
                hint="name a kubeconfig with --kubeconfig or KUBECONFIG, or ask tierd with --url and --token-file",
            ) from exc
        self._custom: Any = kubernetes.client.CustomObjectsApi()

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        """Objects of all namespaces by plural name, each list in order of names.

        raises  SlackTierError  the API server did not answer, or refused
        """
        return {resource.plural: self._list(resource.plural) for resource in RESOURCES}

    def _list(self, plural: str) -> list[dict[str, Any]]:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        try:
            found = self._custom.list_cluster_custom_object(GROUP, VERSION, plural, _request_timeout=_CALL_S)
        except ApiException as exc:
            hint = f"are the definitions of {GROUP} installed?" if exc.status == 404 else ""
            raise SlackTierError(f"list {plural}.{GROUP}: HTTP {exc.status} {exc.reason}", hint=hint) from exc
        except (HTTPError, OSError) as exc:
            raise SlackTierError(f"list {plural}.{GROUP}: {exc}") from exc
        return sorted(found["items"], key=lambda item: full_name(item["metadata"]))


def full_name(metadata: dict[str, Any]) -> str:
    """NAMESPACE/NAME, or the name of a cluster-wide object."""
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata['name']}" if namespace else str(metadata["name"])
