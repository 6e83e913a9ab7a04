"""Artifact classes of the pipeline: the one module of the library that may import kfp."""

from kfp import dsl


class VertexModel(dsl.Artifact):
    """A registered model: uri of the registry entry, metadata.resourceName its name and version."""

    schema_title = "google.VertexModel"
    schema_version = "0.0.1"
