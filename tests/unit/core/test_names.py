"""Names derive from other names."""

from __future__ import annotations

from tuneline.config.store import Store, safe_name
from tuneline.core import names


def test_run_id_is_short_lower_case_and_depends_on_every_part() -> None:
    ids = {names.run_id(*parts) for parts in (("p", "r", "j"), ("p2", "r", "j"), ("p", "r2", "j"), ("p", "r", "j2"))}
    assert len(ids) == 4
    assert all(len(identity) == 12 and identity.startswith("tl") and identity == identity.lower() for identity in ids)


def test_attempt_name() -> None:
    assert names.attempt_name("tlabc", 2) == "tlabc-a2"


def test_canonical_json_ignores_order() -> None:
    assert names.canonical_json({"b": 1, "a": [1.0, "é"]}) == '{"a":[1.0,"é"],"b":1}'


def test_store_paths_are_the_same_in_a_folder_and_a_bucket() -> None:
    folder, bucket = Store("/data/store/"), Store("gs://bucket/prefix")
    for name, arguments in (("hf", ("d",)), ("attempt", ("k", "r-a1")), ("model", ("Qwen/Qwen2.5", "abc")), ("lineage_db", ())):
        one, two = (getattr(store, name)(*arguments) for store in (folder, bucket))
        assert one.removeprefix("/data/store") == two.removeprefix("gs://bucket/prefix")
    assert folder.model("Qwen/Qwen2.5", "abc") == "/data/store/models/Qwen--Qwen2.5@abc"


def test_safe_name_never_leaves_its_folder() -> None:
    assert "/" not in safe_name("../../etc/passwd")
    assert safe_name("..") == "_"
