"""The digest behind an image's tag, by the registry's own API, so that all pods of a run, and its lineage, name the same bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from urllib.parse import urlencode

import urllib3

from tuneline.kube.errors import ImageError

_ACCEPT = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "docker.distribution.manifest.list.v2",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.v2",
    )
)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def resolve_digest(image: str, *, bearer: str = "", plain_http: bool = False, seconds: float = 30.0) -> str:
    """`image` with its digest: `repo:tag@sha256:...`; an image that has one stays as it is.

    Args:
        image: As Kubernetes takes it; without a registry it is Docker Hub's.
        bearer: An access token for private images of Google's registries.
        plain_http: For a registry on loopback.

    Raises:
        ImageError: No such image, no access, or a registry that gives no digest.
    """
    if "@" in image:
        if not _DIGEST.fullmatch(image.rpartition("@")[2]):
            raise ImageError(f"{image} has no sha256 digest behind @", next_move="give repo:tag, or repo@sha256:<64 hex digits>")
        return image
    registry, repository, tag = split_image(image)
    url = f"{'http' if plain_http else 'https'}://{registry}/v2/{repository}/manifests/{tag}"
    pool = urllib3.PoolManager(
        timeout=seconds, retries=urllib3.Retry(3, backoff_factor=0, status_forcelist=(429, 502, 503), raise_on_status=False)
    )
    headers = {"Accept": _ACCEPT, **({"Authorization": f"Bearer {bearer}"} if bearer else {})}
    try:
        answer = pool.request("HEAD", url, headers=headers)
        if answer.status == 401 and (token := _anonymous(pool, answer.headers.get("WWW-Authenticate", ""))):
            answer = pool.request("HEAD", url, headers={**headers, "Authorization": f"Bearer {token}"})
    except urllib3.exceptions.HTTPError as error:
        raise ImageError(
            f"the registry of {image} does not answer", found=str(error)[:300], next_move="give the image by digest"
        ) from error
    digest = answer.headers.get("Docker-Content-Digest", "")
    if answer.status != 200 or not _DIGEST.fullmatch(digest):
        move = "check name and tag and who may pull it, or give the image by digest"
        raise ImageError(f"no digest of {image} can be found", found=f"HTTP {answer.status} from {registry}", next_move=move)
    return f"{image if ':' in image.rpartition('/')[2] else f'{image}:{tag}'}@{digest}"


def split_image(image: str) -> tuple[str, str, str]:
    """Registry, repository and tag, with Docker Hub's defaults."""
    head, _, rest = image.partition("/")
    if not rest or not ("." in head or ":" in head or head == "localhost"):
        head, rest = "registry-1.docker.io", image if rest else f"library/{image}"
    repository, colon, tag = rest.rpartition(":")
    return (head, repository, tag) if colon else (head, rest, "latest")


def _anonymous(pool: urllib3.PoolManager, challenge: str) -> str:
    """A token for anybody, where the registry gives one."""
    fields: Mapping[str, str] = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    if not challenge.startswith("Bearer") or "realm" not in fields:
        return ""
    query = urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    answer = pool.request("GET", f"{fields['realm']}?{query}")
    if answer.status != 200:
        return ""
    body = json.loads(answer.data)
    return str(body.get("token") or body.get("access_token") or "")
