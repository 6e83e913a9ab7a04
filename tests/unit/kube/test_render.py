"""Rendering: nothing can be injected, nothing is guessed, and the faults of the tutorials stay corrected."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kube.systems import GKE, RUN_ID, SYSTEMS
from tuneline.config.machines import MACHINES
from tuneline.config.spec import RunSpec
from tuneline.kube.errors import RenderError
from tuneline.kube.facts import Facts, Lustre, Operator
from tuneline.kube.render import MANIFESTS, Manifest, dra_driver_values, render, render_job
from tuneline.kube.sizes import CPU_WORKER, HEAD, worker_size

GPU_SYSTEMS = ("autopilot", "standard", "a4x", "lustre")


def rendered(system: str, *, facts: dict[str, Any] | None = None, **parameters: Any) -> list[Manifest]:
    chosen = SYSTEMS[system]
    spec = RunSpec.build({**GKE, **chosen.parameters, **parameters})
    return render(spec, RUN_ID, dataclasses.replace(chosen.facts, **(facts or {})))


def cluster(system: str, **options: Any) -> dict[str, Any]:
    return next(manifest.body["spec"] for manifest in rendered(system, **options) if manifest.kind == "RayCluster")


def head(spec: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = spec["headGroupSpec"]["template"]
    return found


def worker(spec: dict[str, Any]) -> dict[str, Any]:
    (group,) = spec["workerGroupSpecs"]
    found: dict[str, Any] = group["template"]
    return found


def body(system: str, kind: str, **options: Any) -> dict[str, Any]:
    return next(manifest.body for manifest in rendered(system, **options) if manifest.kind == kind)


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_names_are_unique_and_everything_says_whose_it_is(system: str) -> None:
    manifests = rendered(system)
    assert len({(manifest.kind, manifest.name) for manifest in manifests}) == len(manifests)
    for manifest in manifests:
        assert manifest.body["metadata"]["labels"]["managed-by"] == "tuneline"
        assert manifest.shared == (RUN_ID not in manifest.name)
    assert manifests[-1].kind == "RayCluster", "last: all that its pods name is there"


def test_the_same_parameters_give_the_same_text() -> None:
    assert [manifest.text for manifest in rendered("a4x")] == [manifest.text for manifest in rendered("a4x")]


@settings(max_examples=80, deadline=None)
@given(
    text=st.text(max_size=40)
    | st.sampled_from(['"', "a: b", "x\n- y", "{{ 7 * 7 }}", "#", "}", "'", "\\", "*a", "!!python/object:x", "yes", "1e3", "~"])
)
def test_no_value_can_leave_its_place(text: str) -> None:
    chosen = SYSTEMS["lustre"]
    facts = dataclasses.replace(
        chosen.facts,
        image=text,
        ray_version=text,
        lustre=Lustre(text, text, text),
        operator=Operator(text, {"app.kubernetes.io/name": text}),
        networks=tuple(dataclasses.replace(network, name=text) for network in chosen.facts.networks),
    )
    if not all(character.isprintable() or character <= " " for character in text):
        with contextlib.suppress(RenderError):  # control characters are quoted or refused; either way nothing below may change
            assert len(render(chosen.spec, RUN_ID, facts)) == len(chosen.manifests()) - 1
        return
    manifests = render(chosen.spec, RUN_ID, facts)
    plain = render(chosen.spec, RUN_ID, chosen.facts)
    assert [manifest.kind for manifest in manifests] == [manifest.kind for manifest in plain]
    assert [_shape(manifest.body) for manifest in manifests] == [_shape(manifest.body) for manifest in plain]
    spec = next(manifest.body["spec"] for manifest in manifests if manifest.kind == "RayCluster")
    assert spec["rayVersion"] == text
    assert head(spec)["spec"]["containers"][0]["image"] == text
    interfaces = json.loads(worker(spec)["metadata"]["annotations"]["networking.gke.io/interfaces"])
    assert [item["network"] for item in interfaces[1:]] == [text] * 9


def _shape(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _shape(value) for key, value in node.items()}
    return [_shape(item) for item in node] if isinstance(node, list) else type(node).__name__


def test_a_value_that_is_missing_is_told_not_left_out(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuneline.kube import render as module

    (tmp_path / "x.yaml.j2").write_text("a: {{ run_id }}\nb: {{ nowhere }}\n")
    monkeypatch.setattr(module, "MANIFESTS", tmp_path)
    module._environment.cache_clear()
    try:
        with pytest.raises(RenderError) as caught:
            module._text("x.yaml.j2", {"run_id": "r"})
        assert "nowhere" in caught.value.found
    finally:
        module._environment.cache_clear()


def test_templates_print_values_only_where_yaml_expects_one() -> None:
    for path in MANIFESTS.rglob("*.j2"):
        for line in path.read_text().splitlines():
            for before, after in re.findall(r"(.?)\{\{.*?\}\}(.?)", line):
                assert before in ("", " ", "[", "{"), f"{path.name}: {line}"
                assert after in ("", " ", ",", "]", "}", ":"), f"{path.name}: {line}"


@pytest.mark.parametrize(
    ("system", "options", "text"),
    [
        ("standard", {"facts": {"networks": ()}}, "1 gVNIC and 8 RDMA interfaces, given 0"),
        ("standard", {"facts": {"bucket": ""}}, "bucket"),
        ("standard", {"facts": {"cpu_pool": ""}}, "cpu_pool"),
        ("standard", {"facts": {"gpu_pool": ""}}, "gpu_pool"),
        ("lustre", {"facts": {"lustre": None}}, "address of the file system"),
        ("autopilot", {"facts": {"resource_api": ""}}, "GKE 1.34"),
    ],
)
def test_what_makes_no_system_is_refused(system: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(RenderError) as caught:
        rendered(system, **options)
    assert text in str(caught.value)


# The faults of the tutorials, one test each where a golden alone would not say why.


@pytest.mark.parametrize("system", GPU_SYSTEMS)
def test_the_head_is_never_on_spot_and_takes_no_gpu(system: str) -> None:
    pod = head(cluster(system))["spec"]
    text = json.dumps(pod)
    assert 'nvidia.com/gpu": "' not in text
    assert 'gke-spot": "true"' not in text
    if system != "autopilot":
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert {"key": "cloud.google.com/gke-spot", "operator": "DoesNotExist"} in term["matchExpressions"]
    assert cluster(system)["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_workers_are_all_or_none_and_their_cpus_come_from_their_limits(system: str) -> None:
    (group,) = cluster(system)["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"] == SYSTEMS[system].spec.gpu_nodes
    assert "num-cpus" not in group["rayStartParams"]
    for container in group["template"]["spec"]["containers"]:
        assert container["resources"]["limits"] == container["resources"]["requests"]


@pytest.mark.parametrize(
    ("kind", "machine"),
    [(kind, machine) for kind in ("autopilot", "standard") for machine in ("a3-ultragpu-8g", "a4-highgpu-8g")]
    + [("a4x", "a4x-highgpu-4g")],
)
def test_workers_fit_their_machine_beside_the_system_and_the_head(machine: str, kind: str) -> None:
    found, size = MACHINES[machine], worker_size(MACHINES[machine], kind)
    beside = HEAD if kind == "a4x" else dataclasses.replace(HEAD, cpu=0, memory=0)
    assert size.cpu + beside.cpu <= found.vcpus - 8
    # GKE keeps 25 % of the first 4 GiB, 20 % of the next 4, 10 % of 8, 6 % of 112 and 2 % of the rest, and 100 MiB for eviction.
    kept = 1 + 0.8 + 0.8 + 6.72 + 0.02 * (found.memory_gib - 128) + 0.1
    assert size.memory + beside.memory <= found.memory_gib - kept
    assert size.shm * 2 < size.memory
    assert size.shm >= 200, "Ray's object store takes 200 GB of it"
    assert CPU_WORKER.shm < CPU_WORKER.memory


@pytest.mark.parametrize("system", GPU_SYSTEMS)
def test_every_worker_has_rdma_gib_and_shared_memory(system: str) -> None:
    template = worker(cluster(system))
    (container,) = template["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts["gib"] == "/usr/local/gib"
    assert mounts["shm"] == "/dev/shm"
    (setup,) = container["command"]
    assert "source /usr/local/gib/scripts/set_nccl_env.sh" in setup
    assert setup.endswith("|| exit 1")
    assert "/usr/local/gib/lib64" in setup
    machine = MACHINES[SYSTEMS[system].spec.gpu_machine]
    assert (f"tuner_config_{machine.tuner}.txtpb" in setup) is bool(machine.tuner)
    claims = {claim["name"] for claim in container["resources"].get("claims", [])}
    interfaces = json.loads(template["metadata"]["annotations"].get("networking.gke.io/interfaces", "[]"))
    wanted = {"autopilot": (1, 0), "a4x": (5, 0), "standard": (0, 10), "lustre": (0, 10)}[system]
    assert (len(claims), len(interfaces)) == wanted
    assert claims == {claim["name"] for claim in template["spec"].get("resourceClaims", [])}


def test_autopilot_takes_no_host_path_and_no_privilege() -> None:
    text = "\n".join(manifest.text for manifest in rendered("autopilot"))
    assert "hostPath" not in text
    assert "privileged: true" not in text


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_volumes_are_bound_both_ways_and_kept(system: str) -> None:
    volumes = [manifest.body for manifest in rendered(system) if manifest.kind == "PersistentVolume"]
    claims = {manifest.name: manifest.body for manifest in rendered(system) if manifest.kind == "PersistentVolumeClaim"}
    handles = {volume["spec"]["csi"]["volumeHandle"] for volume in volumes}
    assert len(handles) == len(volumes) == len(claims), "two volumes of one handle in one pod never mount"
    for volume in volumes:
        name = volume["spec"]["claimRef"]["name"]
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        assert claims[name]["spec"]["volumeName"] == volume["metadata"]["name"]
        assert volume["spec"]["storageClassName"] == claims[name]["spec"]["storageClassName"] == ""


def test_only_gcsfuse_pods_ask_for_its_sidecar_and_its_limits_are_lifted() -> None:
    for system, limit in (("standard", "0"), ("a4x", "0"), ("autopilot", "64Gi")):
        annotations = worker(cluster(system))["metadata"]["annotations"]
        assert annotations["gke-gcsfuse/volumes"] == "true"
        assert annotations["gke-gcsfuse/memory-limit"] == limit
    for template in (head(cluster("lustre")), worker(cluster("lustre"))):
        assert not any(name.startswith("gke-gcsfuse") for name in template["metadata"]["annotations"])


def test_checkpoints_are_coherent_and_data_is_cached() -> None:
    options = {
        manifest.name: manifest.body["spec"]["mountOptions"] for manifest in rendered("standard") if manifest.kind == "PersistentVolume"
    }
    assert "only-dir=team/tuning" in options[f"{RUN_ID}-data"]
    assert "metadata-cache:ttl-secs:-1" in options[f"{RUN_ID}-data"]
    assert "only-dir=team/tuning/checkpoints" in options[f"{RUN_ID}-checkpoints"]
    assert {"metadata-cache:ttl-secs:0", "metadata-cache:negative-ttl-secs:0"} <= set(options[f"{RUN_ID}-checkpoints"])


@pytest.mark.parametrize(
    ("version", "request_"),
    [
        ("resource.k8s.io/v1", {"name": "mrdma", "exactly": {"deviceClassName": "mrdma.google.com", "allocationMode": "All"}}),
        ("resource.k8s.io/v1beta2", {"name": "mrdma", "exactly": {"deviceClassName": "mrdma.google.com", "allocationMode": "All"}}),
        ("resource.k8s.io/v1beta1", {"name": "mrdma", "deviceClassName": "mrdma.google.com", "allocationMode": "All"}),
    ],
)
def test_device_claims_have_the_shape_of_the_version_that_the_server_offers(version: str, request_: dict[str, Any]) -> None:
    template = body("autopilot", "ResourceClaimTemplate", facts={"resource_api": version})
    assert template["apiVersion"] == version
    assert template["spec"]["spec"]["devices"]["requests"] == [request_]
    nic = body("a4x", "ResourceClaimTemplate", facts={"resource_api": version})["spec"]["spec"]["devices"]["requests"][0]
    assert (nic.get("exactly") or nic)["count"] == 1


def test_the_domain_has_as_many_nodes_as_workers() -> None:
    assert body("a4x", "ComputeDomain", gpu_nodes=6)["spec"]["numNodes"] == 6


@pytest.mark.parametrize(
    ("parameters", "wanted"),
    [
        (
            {"gpu_reservation": "projects/qq/reservations/r/reservationBlocks/b/reservationSubBlocks/s"},
            {
                "reservations": {
                    "affinity": "Specific",
                    "specific": [
                        {
                            "name": "r",
                            "project": "qq",
                            "zones": ["us-central1-b"],
                            "reservationBlock": {"name": "b", "reservationSubBlock": {"name": "s"}},
                        }
                    ],
                }
            },
        ),
        (
            {"gpu_reservation": "r"},
            {"reservations": {"affinity": "Specific", "specific": [{"name": "r", "project": "my-project", "zones": ["us-central1-b"]}]}},
        ),
        (
            {"gpu_provisioning": "spot", "gpu_reservation": ""},
            {"spot": True, "reservations": {"affinity": "None"}, "location": {"zones": ["us-central1-b"]}},
        ),
        (
            {"gpu_provisioning": "flex-start", "gpu_reservation": "", "gpu_max_run_hours": 24},
            {
                "flexStart": {"enabled": True},
                "maxRunDurationSeconds": 86400,
                "reservations": {"affinity": "None"},
                "location": {"zones": ["us-central1-b"]},
            },
        ),
        (
            {"gpu_provisioning": "on-demand", "gpu_reservation": ""},
            {"reservations": {"affinity": "None"}, "location": {"zones": ["us-central1-b"]}},
        ),
    ],
)
def test_the_compute_class_buys_as_asked(parameters: dict[str, Any], wanted: dict[str, Any]) -> None:
    (priority,) = body("autopilot", "ComputeClass", **parameters)["spec"]["priorities"]
    machine = {"machineType": "a4-highgpu-8g", "acceleratorNetworkProfile": "auto"}
    assert priority == {**machine, "gpu": {"type": "nvidia-b200", "count": 8, "driverVersion": "latest"}, **wanted}


def test_the_driver_is_kept_off_labels_that_gke_does_not_have() -> None:
    values = dra_driver_values(SYSTEMS["a4x"].spec, RUN_ID, SYSTEMS["a4x"].facts)
    text = yaml.safe_dump(values)
    assert values["nvidiaDriverRoot"] == "/home/kubernetes/bin/nvidia"
    for label in ("node-role.kubernetes.io/control-plane", "nvidia.com/gpu.present", "feature.node.kubernetes.io"):
        assert label not in text
    assert values["controller"]["affinity"]["nodeAffinity"]
    assert values["kubeletPlugin"]["affinity"]["nodeAffinity"]


def test_images_are_pinned() -> None:
    for system in SYSTEMS:
        for image in re.findall(r'image: "([^"]+)"', "\n".join(manifest.text for manifest in rendered(system))):
            assert "@sha256:" in image or re.search(r":v\d+\.\d+\.\d+$", image), image
            assert not image.endswith(":latest")


def test_a_job_runs_on_the_runs_cluster_and_outlives_nothing() -> None:
    job = render_job(
        SYSTEMS["a4x"].spec,
        RUN_ID,
        SYSTEMS["a4x"].facts,
        job_name=f"{RUN_ID}-a2",
        argv=["python", "-m", "x", "a b"],
        env={"K": "v: w"},
        deadline_seconds=60,
    )
    spec = job.body["spec"]
    assert spec["clusterSelector"] == {"ray.io/cluster": RUN_ID}
    assert (job.name, spec["jobId"]) == (f"{RUN_ID}-a2", f"{RUN_ID}-a2")
    assert job.body["metadata"]["annotations"]["tuneline-command"] == "python -m x 'a b'"
    assert yaml.safe_load(spec["runtimeEnvYAML"]) == {"env_vars": {"K": "v: w"}}
    assert not {"suspend", "backoffLimit", "rayClusterSpec"} & set(spec), "not allowed with a cluster selector"
    assert len(job.name) <= 47


def test_arguments_reach_the_job_as_they_are() -> None:
    nasty = ["$HOME", "`id`", "it's", 'say "x"', "back\\slash", "a|b;c&d", "x=[1,{y: 2}]", "*", "", "zwei Wörter", "new\nline", "#", "!x"]
    argv = [sys.executable, "-c", "import json,sys;print(json.dumps(sys.argv[1:]))", *nasty]
    job = render_job(SYSTEMS["cpu"].spec, RUN_ID, SYSTEMS["cpu"].facts, job_name="j", argv=argv, env={}, deadline_seconds=60)
    # As `ray job submit` does in the submitter's bash, and the job supervisor in a shell on the head.
    submitted = subprocess.list2cmdline(shlex.split(job.body["spec"]["entrypoint"]))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(submitted, shell=True, capture_output=True, text=True, check=True, env={**os.environ, "PATH": path})
    assert json.loads(done.stdout) == nasty


def test_an_environment_that_the_submitter_would_expand_is_refused() -> None:
    with pytest.raises(RenderError, match="B"):
        render_job(
            SYSTEMS["cpu"].spec, RUN_ID, SYSTEMS["cpu"].facts, job_name="j", argv=["x"], env={"A": "ok", "B": "$HOME"}, deadline_seconds=60
        )


def test_the_cpu_system_needs_no_gpu_object() -> None:
    kinds = {manifest.kind for manifest in rendered("cpu")}
    assert kinds == {"Namespace", "ServiceAccount", "NetworkPolicy", "PersistentVolume", "PersistentVolumeClaim", "RayCluster"}
    assert "nvidia" not in json.dumps(cluster("cpu"))
    assert Facts(image="i", ray_version="2").bucket == ""
