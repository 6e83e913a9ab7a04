"""Google's clients, built when first used, each with the credentials of its concern.

A caller may impersonate a narrow account for each concern; tokens live an hour and refresh themselves. Endpoints may be overridden,
service by service or through TUNELINE_GOOGLE_ENDPOINTS (JSON), which also reaches tasks that run as subprocesses: then clients speak
REST with anonymous credentials.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from tuneline.core.clock import SYSTEM, Clock
from tuneline.gcp.errors import translated

ENDPOINTS_VARIABLE = "TUNELINE_GOOGLE_ENDPOINTS"
CONCERNS = ("network", "cluster", "storage", "secrets")
SERVICES = (
    "container",
    "compute",
    "lustre",
    "servicenetworking",
    "secretmanager",
    "serviceusage",
    "cloudresourcemanager",
    "iamcredentials",
    "storage",
)
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKEN_SECONDS = 3600
#: Seconds that one request may take; a time-out is ambiguous and handled as such.
REQUEST_SECONDS = 60.0

#: Collections of Compute Engine that belong to the cluster; every other belongs to the network.
_CLUSTER_COLLECTIONS = (
    "InstanceGroupManagers",
    "Instances",
    "NetworkEndpointGroups",
    "Disks",
    "ForwardingRules",
    "ResourcePolicies",
    "Reservations",
)


class Google:
    """Clients of one project.

    Args:
        project: Project id.
        accounts: Concern (network | cluster | storage | secrets) -> e-mail of the account to impersonate; '' or absent: the caller's own.
        endpoints: Service -> `http://host:port`; adds to and overrides TUNELINE_GOOGLE_ENDPOINTS.
        credentials: The caller's own; None takes Application Default Credentials.
        clock: Every wait and deadline of this package is on it.
    """

    def __init__(
        self,
        project: str,
        *,
        accounts: Mapping[str, str] | None = None,
        endpoints: Mapping[str, str] | None = None,
        credentials: Any = None,
        clock: Clock = SYSTEM,
    ) -> None:
        self.project = project
        self.accounts = {concern: email for concern, email in (accounts or {}).items() if email}
        self.endpoints = {**json.loads(os.environ.get(ENDPOINTS_VARIABLE) or "{}"), **(endpoints or {})}
        unknown = [*(set(self.accounts) - set(CONCERNS)), *(set(self.endpoints) - set(SERVICES))]
        if unknown:
            raise ValueError(f"unknown concern or service {', '.join(sorted(unknown))}; choose from {', '.join((*CONCERNS, *SERVICES))}")
        self.clock = clock
        self._given = credentials
        self._credentials: dict[str, Any] = {}
        self._compute: dict[str, Any] = {}

    def credentials(self, concern: str = "") -> Any:
        """Credentials of a concern; '' for the caller's own.

        Raises:
            Permission: If there are none.
        """
        email = self.accounts.get(concern, "")
        if email not in self._credentials:
            with translated("find Google credentials"):
                self._credentials[email] = self._impersonated(email) if email else self._own()
        return self._credentials[email]

    def _own(self) -> Any:
        if self._given is not None:
            return self._given
        if self.endpoints:
            from google.auth.credentials import AnonymousCredentials

            return AnonymousCredentials()
        import google.auth

        return google.auth.default(scopes=[SCOPE])[0]

    def _impersonated(self, email: str) -> Any:
        from google.auth import impersonated_credentials
        from google.oauth2.credentials import Credentials

        url = self.endpoints.get("iamcredentials", "")
        if self.endpoints and not url:
            return self._own()
        # Anonymous credentials cannot sign the impersonating call, so an overridden endpoint gets a token that means nothing.
        source = Credentials(token="local") if url and self._given is None else self._own()
        path = f"{url}/v1/projects/-/serviceAccounts/{email}:generateAccessToken" if url else None
        return impersonated_credentials.Credentials(
            source_credentials=source,
            target_principal=email,
            target_scopes=[SCOPE],
            lifetime=TOKEN_SECONDS,
            iam_endpoint_override=path,
        )

    def _client(self, service: str, kind: Any, concern: str) -> Any:
        """A generated client: its own transport on Google's endpoint, REST on an overridden one."""
        credentials = self.credentials(concern)
        url = self.endpoints.get(service)
        if not url:
            return kind(credentials=credentials)
        parts = urlsplit(url)
        transport = kind.get_transport_class("rest")(host=parts.netloc, url_scheme=parts.scheme, credentials=credentials)
        return kind(transport=transport)

    @cached_property
    def clusters(self) -> Any:
        """google.cloud.container_v1.ClusterManagerClient."""
        from google.cloud import container_v1

        return self._client("container", container_v1.ClusterManagerClient, "cluster")

    def compute(self, collection: str) -> Any:
        """The google.cloud.compute_v1 client of a collection, such as `Networks`."""
        if collection not in self._compute:
            from google.cloud import compute_v1

            concern = "cluster" if collection in _CLUSTER_COLLECTIONS else "network"
            self._compute[collection] = self._client("compute", getattr(compute_v1, f"{collection}Client"), concern)
        return self._compute[collection]

    @cached_property
    def lustre(self) -> Any:
        """google.cloud.lustre_v1.LustreClient."""
        from google.cloud import lustre_v1

        return self._client("lustre", lustre_v1.LustreClient, "storage")

    @cached_property
    def secrets(self) -> Any:
        """google.cloud.secretmanager_v1.SecretManagerServiceClient."""
        from google.cloud import secretmanager_v1

        return self._client("secretmanager", secretmanager_v1.SecretManagerServiceClient, "secrets")

    @cached_property
    def services(self) -> Any:
        """google.cloud.service_usage_v1.ServiceUsageClient."""
        from google.cloud import service_usage_v1

        return self._client("serviceusage", service_usage_v1.ServiceUsageClient, "")

    @cached_property
    def projects(self) -> Any:
        """google.cloud.resourcemanager_v3.ProjectsClient."""
        from google.cloud import resourcemanager_v3

        return self._client("cloudresourcemanager", resourcemanager_v3.ProjectsClient, "")

    @cached_property
    def peering(self) -> Any:
        """Service Networking by its bundled discovery document: there is no google-cloud client."""
        import googleapiclient.discovery
        import googleapiclient.http
        import httplib2
        from google.auth.credentials import AnonymousCredentials

        credentials, url = self.credentials("network"), self.endpoints.get("servicenetworking")
        http = httplib2.Http(timeout=REQUEST_SECONDS)
        if not isinstance(credentials, AnonymousCredentials):
            import google_auth_httplib2

            http = google_auth_httplib2.AuthorizedHttp(credentials, http=http)
        options = {"api_endpoint": url} if url else None
        return googleapiclient.discovery.build("servicenetworking", "v1", http=http, client_options=options, static_discovery=True)

    @cached_property
    def storage(self) -> Any:
        """google.cloud.storage.Client."""
        from google.cloud import storage

        url = self.endpoints.get("storage")
        options = {"api_endpoint": url} if url else None
        return storage.Client(project=self.project, credentials=self.credentials("storage"), client_options=options)
