"""Digests by the registry API, against a registry on loopback."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.kube.support import Answer, Handler, Request, Server, failure
from tuneline.kube.errors import ImageError
from tuneline.kube.images import resolve_digest, split_image

Serve = Callable[[Handler], Server]
DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("verlai/verl:vllm011.latest", ("registry-1.docker.io", "verlai/verl", "vllm011.latest")),
        ("ubuntu", ("registry-1.docker.io", "library/ubuntu", "latest")),
        ("nvcr.io/nvidia/nemo-rl:v0.5.0", ("nvcr.io", "nvidia/nemo-rl", "v0.5.0")),
        ("localhost:5000/a/b", ("localhost:5000", "a/b", "latest")),
    ],
)
def test_image_names_are_split_as_docker_does(image: str, parts: tuple[str, str, str]) -> None:
    assert split_image(image) == parts


def test_a_digest_is_found_with_the_token_that_the_registry_gives_anybody(serve: Serve) -> None:
    def handle(request: Request) -> Answer:
        if request.path == "/token":
            assert request.query == {"service": "registry", "scope": "repository:verlai/verl:pull"}
            return Answer(body={"token": "anon"})
        assert (request.method, request.path) == ("HEAD", "/v2/verlai/verl/manifests/v1")
        assert "oci.image.index" in request.headers["accept"]
        if request.headers.get("authorization") != "Bearer anon":
            challenge = f'Bearer realm="{server.url}/token",service="registry",scope="repository:verlai/verl:pull"'
            return Answer(401, headers={"WWW-Authenticate": challenge})
        return Answer(headers={"Docker-Content-Digest": DIGEST})

    server = serve(handle)
    assert resolve_digest(f"{server.address}/verlai/verl:v1", plain_http=True) == f"{server.address}/verlai/verl:v1@{DIGEST}"


def test_an_image_with_a_digest_stays_and_a_false_digest_is_refused() -> None:
    assert resolve_digest(f"verlai/verl:v1@{DIGEST}") == f"verlai/verl:v1@{DIGEST}"
    with pytest.raises(ImageError):
        resolve_digest("verlai/verl@sha256:1234")


@pytest.mark.parametrize("answer", [failure(404, "manifest unknown"), Answer(401), Answer(200, headers={"Docker-Content-Digest": "md5:1"})])
def test_no_digest_is_an_error_that_names_image_and_registry(serve: Serve, answer: Answer) -> None:
    server = serve(lambda request: answer)
    with pytest.raises(ImageError) as caught:
        resolve_digest(f"{server.address}/a/b:v1", plain_http=True)
    assert f"{server.address}/a/b:v1" in caught.value.message
    assert str(answer.status) in caught.value.found


def test_a_registry_that_is_down_is_told(serve: Serve) -> None:
    server = serve(lambda request: Answer())
    server.close()
    with pytest.raises(ImageError, match="does not answer"):
        resolve_digest(f"{server.address}/a/b:v1", plain_http=True, seconds=1)
