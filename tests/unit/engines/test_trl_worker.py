"""How a training attempt tells why it failed."""

from __future__ import annotations

from tuneline.core.errors import StagingError
from tuneline.engines.trl_worker import _failure


class Wrapped(Exception):
    """As Ray's RayTaskError: the worker's error is its `cause`."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__("ray::RayTrainWorker\n  Traceback ...\nfar too much")
        self.cause = cause


def _raised(outer: BaseException, inner: BaseException) -> BaseException:
    outer.__cause__ = inner
    return outer


def test_an_error_of_ours_keeps_its_advice_through_rays_wrapping() -> None:
    ours = StagingError("no chat template", asked="a", found="b", choices=["c"], next_move="use another model")
    told = _failure("tlx-a1", _raised(RuntimeError("training failed"), Wrapped(ours)))
    assert told.message == "training attempt tlx-a1 failed: no chat template"
    assert (told.asked, told.found, told.choices, told.next_move) == ("a", "b", ("c",), "use another model")


def test_any_other_error_is_told_by_its_type_and_last_line() -> None:
    told = _failure("tlx-a1", _raised(RuntimeError("training failed"), Wrapped(ZeroDivisionError("first\n\nmy reward divides by zero\n"))))
    assert told.message == "training attempt tlx-a1 failed: ZeroDivisionError: my reward divides by zero"
    assert _failure("tlx-a1", MemoryError()).message == "training attempt tlx-a1 failed: MemoryError: no message"
