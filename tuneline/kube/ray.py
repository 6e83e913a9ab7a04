"""What Ray itself says of its cluster, through the API server's proxy to the head's dashboard, where that way is open."""

from __future__ import annotations

from typing import Any

from tuneline.core.log import get_logger
from tuneline.kube.api import Api, ApiError
from tuneline.kube.errors import KubeError

_log = get_logger("kube")


def count_gpus(api: Api, namespace: str, service: str) -> int | None:
    """GPUs of the nodes that Ray counts as alive; None where the dashboard cannot be asked from here.

    Args:
        service: The head's service, as the Ray cluster's status names it.
    """
    path = f"/api/v1/namespaces/{namespace}/services/http:{service}:dashboard/proxy/api/v0/nodes"
    try:
        answer: Any = api.call("GET", path, query={"limit": "10000"}, retry=False)
        nodes = answer["data"]["result"]["result"]
        return sum(int(node.get("resources_total", {}).get("GPU", 0)) for node in nodes if node["state"] == "ALIVE")
    except (KubeError, ApiError) as error:
        _log.info("Ray's own count of GPUs cannot be asked for: %s", error)
    except (KeyError, TypeError, ValueError) as error:
        _log.warning("Ray's own count of GPUs cannot be read: %r", error)
    return None
