"""The files of configs/cluster: loaded, checked by who reads them, and against what the sandboxes need."""

import json
import re
import subprocess
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from minisandbox_ray.config import load_config
from minisandbox_ray.rollout.chat import ChatConfig
from minisandbox_ray.tasks import FactoryConfig
from minisandbox_ray.yaml_file import read_model

CONFIGS = Path(__file__).parents[2] / "configs"
CLUSTER = CONFIGS / "cluster"


def manifests(name: str) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {each["kind"]: each for each in yaml.safe_load_all((CLUSTER / name).read_text())}


def groups() -> list[dict[str, Any]]:
    spec = manifests("kuberay.yaml")["RayCluster"]["spec"]
    return [spec["headGroupSpec"], *spec["workerGroupSpecs"]]


def training_configurations() -> list[Path]:
    """Those that name tasks: others are for the factory, for agents, or policies."""
    return [
        path for path in sorted(CONFIGS.rglob("*.yaml")) if re.search(r"^(tasks|kind):", path.read_text(), re.MULTILINE)
    ]


def test_the_factory_s_and_the_policy_s_configurations_are_valid() -> None:
    factory = read_model(CONFIGS / "factory.yaml", FactoryConfig)
    assert len(factory.packages) * factory.per_package >= 100
    assert read_model(CONFIGS / "policies" / "local_model.yaml", ChatConfig).base_url


@pytest.mark.parametrize("path", training_configurations(), ids=lambda path: path.stem)
def test_every_training_configuration_is_valid(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem.startswith("kuberay"):
        pytest.skip("a manifest of Kubernetes")
    pytest.importorskip("skyrl", reason="SkyRL is not installed")
    from trainer_integration.skyrl.config import skyrl_config

    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    config = load_config([f"config={path}"])
    skyrl = skyrl_config(config, tmp_path)
    assert config.name.replace("-", "_") in {path.stem, f"{path.parent.name}_{path.stem}"}
    if config.backend == "gpu":
        placed = skyrl.trainer.placement
        engines = skyrl.generator.inference_engine
        gpus = placed.policy_num_nodes * placed.policy_num_gpus_per_node
        assert gpus == engines.num_engines * engines.tensor_parallel_size


def test_the_cluster_has_what_kuberay_requires() -> None:
    """The required fields of ray.io/v1, by KubeRay's API reference and its validation of specs."""
    kinds = manifests("kuberay.yaml") | manifests("kuberay_job.yaml")
    assert set(kinds) == {"PersistentVolumeClaim", "RayCluster", "RayJob"}
    cluster, job = kinds["RayCluster"], kinds["RayJob"]
    assert (cluster["apiVersion"], job["apiVersion"]) == ("ray.io/v1", "ray.io/v1")
    assert cluster["spec"]["rayVersion"] == metadata.version("ray")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": cluster["metadata"]["name"]}
    assert isinstance(yaml.safe_load(job["spec"]["runtimeEnvYAML"]), dict)
    for group in groups():
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
        assert "labels" not in group["rayStartParams"], "KubeRay takes them from the group's labels"
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert {"name", "image", "resources"} <= set(container)
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    for group in groups()[1:]:
        assert re.fullmatch("[a-z]([-a-z0-9]*[a-z0-9])?", group["groupName"])
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_nodes_of_the_cluster_are_what_our_configuration_takes_them_for() -> None:
    head, sandboxes, trainers = groups()
    config = load_config([f"config={CLUSTER / 'several_nodes.yaml'}"])
    assert head["rayStartParams"]["num-cpus"] == "0", "no sandboxes there"
    assert trainers["labels"].items() >= config.cluster.exclude_labels.items()
    assert "labels" not in sandboxes
    # As the shell that KubeRay pastes it into does.
    command = f"printf %s {sandboxes['rayStartParams']['resources']}"
    said = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True).stdout
    resources = json.loads(said)
    assert resources.keys() == {"unpack_slots", "sandbox"}
    (container,) = sandboxes["template"]["spec"]["containers"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (cache,) = [each["value"] for each in container["env"] if each["name"] == "MINISANDBOX_CACHE"]
    volumes = {each["name"]: each for each in sandboxes["template"]["spec"]["volumes"]}
    size = volumes[mounts[cache]]["emptyDir"]["sizeLimit"]
    assert config.cluster.store_gib < int(size.removesuffix("Gi"))
    assert any(str(config.archives).startswith(f"{mount}/") for mount in mounts)
    trainer = config.skyrl["trainer"]["placement"]
    assert trainers["replicas"] >= trainer["policy_num_nodes"]


def test_the_batch_script_is_bash_and_its_options_are_slurms() -> None:
    path = CLUSTER / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    lines = path.read_text().splitlines()
    directives = [line for line in lines if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", line) for line in directives)
    # Slurm reads none after the first command.
    commands = [number for number, line in enumerate(lines) if line and not line.startswith("#")]
    assert max(number for number, line in enumerate(lines) if line.startswith("#SBATCH")) < commands[0]
    assert all(after - before == 1 for before, after in pairwise(lines.index(line) for line in directives))
