"""What goes wrong with a Kubernetes cluster, each with its own code; no exception of a client library leaves tuneline.kube."""

from __future__ import annotations

from tuneline.core.errors import TunelineError


class KubeError(TunelineError):
    """A Kubernetes API call that failed in a way with no class of its own."""

    code = "TL900"


class ClusterUnreachable(KubeError):
    """No endpoint of the cluster answers, or none with a certificate that we trust."""

    code = "TL901"


class AccessDenied(KubeError):
    """The API server refuses the caller (401, 403)."""

    code = "TL902"


class ApplyConflict(KubeError):
    """An object or field of that name belongs to somebody else."""

    code = "TL903"


class ManifestRefused(KubeError):
    """The API server does not take a manifest: a field that it does not know, or a value that it does not allow."""

    code = "TL904"


class KindMissing(KubeError):
    """The cluster does not serve a kind: a CRD or an API version is not there."""

    code = "TL905"


class ReadBackMismatch(KubeError):
    """The cluster holds something else than was applied: it dropped or changed a field."""

    code = "TL906"


class WaitTimeout(KubeError):
    """Something did not become true before its deadline."""

    code = "TL907"


class DeleteStuck(KubeError):
    """An object is still there at its deadline, its finalizers with it."""

    code = "TL908"


class WorkloadFailed(KubeError):
    """Pods that cannot start or go on; the message is the cause."""

    code = "TL910"


class ChartError(KubeError):
    """A Helm chart that cannot be read or rendered."""

    code = "TL920"


class RenderError(KubeError):
    """A manifest that cannot be made from these parameters."""

    code = "TL921"


class ImageError(KubeError):
    """A container image whose digest cannot be found out."""

    code = "TL922"
