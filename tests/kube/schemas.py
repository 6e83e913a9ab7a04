"""CRDs for kinds that the test server lacks, made from published schemas: GKE's ComputeClass and Kubernetes' ResourceClaimTemplate."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

#: The versions of resource.k8s.io that GKE offers, by Kubernetes 1.34's schemas.
RESOURCE_VERSIONS = ("v1", "v1beta1")


OTHER_CRDS = (
    "networking.gke.io_networks.yaml",
    "networking.gke.io_gkenetworkparamsets.yaml",
    "resource.nvidia.com_computedomains.v25.8.1.yaml",
)


def kuberay_files(version: str) -> tuple[str, str]:
    return f"ray.io_rayclusters.v{version}.yaml", f"ray.io_rayjobs.v{version}.yaml"


@cache
def load(file: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file of megabytes, by libyaml where it is there."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [document for document in yaml.load_all(file.read_text(), Loader=loader) if document]


def published_crds(file: Path) -> list[dict[str, Any]]:
    """A file's CRDs as a v1.20 server takes them."""
    return [_for_old_server(document) for document in load(file)]


def _for_old_server(node: Any) -> Any:
    """Without what the server does not know: CEL rules, empty defaults, list-map keys that are not required. All else is as published."""
    if isinstance(node, list):
        return [_for_old_server(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {name: _for_old_server(value) for name, value in node.items()}
    if kept.get("default") == "":
        del kept["default"]
    if isinstance(kept.get("x-kubernetes-validations"), list):
        del kept["x-kubernetes-validations"]
    keys = kept.get("x-kubernetes-list-map-keys")
    if keys and not set(keys) <= set(kept.get("items", {}).get("required", [])):
        del kept["x-kubernetes-list-map-keys"]
        kept["x-kubernetes-list-type"] = "atomic"
    return kept


def compute_class_schema(crds: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((crds / "cloud.google.com_computeclass_v1.json").read_text())
    return loaded


def compute_class_crd(crds: Path) -> dict[str, Any]:
    schema = _structural(compute_class_schema(crds))
    schema["properties"] = {name: value for name, value in schema["properties"].items() if name in ("spec", "status")}
    return _crd("cloud.google.com", "ComputeClass", "computeclasses", "Cluster", {"v1": schema})


def resource_claim_template_crd() -> dict[str, Any]:
    schemas = {version: _resource_schema(version) for version in RESOURCE_VERSIONS}
    return _crd("resource.k8s.io", "ResourceClaimTemplate", "resourceclaimtemplates", "Namespaced", schemas)


def _resource_schema(version: str) -> dict[str, Any]:
    """spec of ResourceClaimTemplate with its references put in place; metadata of the claim stays open."""
    folder = files("kubernetes_validate") / "kubernetes-json-schema" / "v1.34.0-local"
    definitions = json.loads((folder / "_definitions.json").read_text())["$defs"]
    spec = _inline(definitions[f"io.k8s.api.resource.{version}.ResourceClaimTemplateSpec"], definitions)
    spec["properties"]["metadata"] = {"type": "object"}
    return {"type": "object", "properties": {"spec": spec}}


def _inline(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inline(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
    kept = {name: _inline(value, definitions) for name, value in node.items() if not name.startswith("x-kubernetes") and name != "$schema"}
    kind = kept.get("type")
    if isinstance(kind, list):  # ["string", "null"]
        kept["type"] = next(one for one in kind if one != "null")
    if "oneOf" in kept:  # a quantity: a text or a number
        del kept["oneOf"]
        kept["x-kubernetes-int-or-string"] = True
    return kept


def _structural(node: Any) -> Any:
    """What a v1.20 server takes: no CEL rules, no `additionalProperties: false` (unknown fields are dropped, and read back as missing)."""
    if isinstance(node, list):
        return [_structural(item) for item in node]
    if not isinstance(node, dict):
        return node
    kept = {name: _structural(value) for name, value in node.items() if name != "x-kubernetes-validations"}
    if kept.get("additionalProperties") is False:
        del kept["additionalProperties"]
    return kept


def _crd(group: str, kind: str, plural: str, scope: str, schemas: dict[str, dict[str, Any]]) -> dict[str, Any]:
    first = next(iter(schemas))
    versions = [
        {"name": name, "served": True, "storage": name == first, "schema": {"openAPIV3Schema": schema}} for name, schema in schemas.items()
    ]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for a test server"}},
        "spec": {"group": group, "scope": scope, "names": {"kind": kind, "plural": plural, "singular": kind.lower()}, "versions": versions},
    }
