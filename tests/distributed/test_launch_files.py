"""The launch files: their syntax, what accelerate and transformers read in them, and training on two machines (both this)."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hf_variants.training.arguments import training_arguments
from tests.training.runs import MODEL, spec_of, write_text

ROOT = Path(__file__).parents[2]
FILES = ROOT / "recipes" / "launch"
SCRIPTS = [path for path in FILES.iterdir() if path.suffix in (".sh", ".slurm")]
ACCELERATE = {
    "accelerate_ddp": {"multi_gpu": True, "use_fsdp": False},
    "accelerate_fsdp2": {"multi_gpu": False, "use_fsdp": True},
}


def test_every_file_is_tested():
    tested = {path.name for path in SCRIPTS} | {f"{name}.yaml" for name in ACCELERATE} | {"deepspeed_zero3.json"}
    assert tested == {path.name for path in FILES.iterdir()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_bash(script):
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert script.read_text().startswith("#!/usr/bin/env bash")


def test_slurm_reads_its_head():
    """SBATCH lines count only before the first command, and name options of sbatch."""
    lines = (FILES / "pretrain.slurm").read_text().splitlines()
    options = [line for line in lines if line.startswith("#SBATCH")]
    first_command = next(number for number, line in enumerate(lines) if line and not line.startswith("#"))
    assert options == [line for line in lines[:first_command] if line.startswith("#SBATCH")] and len(options) == 8
    known = {"job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "requeue", "signal"}
    assert {line.split()[1].removeprefix("--").split("=")[0] for line in options} == known


@pytest.mark.parametrize("name", ACCELERATE)
def test_accelerate_reads_its_configs(name):
    from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    file = FILES / f"{name}.yaml"
    given = yaml.safe_load(file.read_text())
    config = load_config_from_file(str(file))
    assert isinstance(config, ClusterConfig)
    assert {key: str(getattr(config, key)).rsplit(".", 1)[-1] for key in given if key != "fsdp_config"} == {
        key: str(value) for key, value in given.items() if key != "fsdp_config"
    }
    words = ["--config_file", str(file), "recipes/pretrain.py", "--config", "recipes/pretrain.yaml"]
    arguments = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    assert {key: bool(getattr(arguments, key)) for key in ACCELERATE[name]} == ACCELERATE[name]
    assert (arguments.num_processes, arguments.mixed_precision) == (8, "bf16")
    assert arguments.training_script_args == ["--config", "recipes/pretrain.yaml"]
    environment = prepare_multi_gpu_env(arguments)
    if given.get("fsdp_config"):
        read = {key: environment[key.upper()] for key in given["fsdp_config"]}
        assert read == {
            key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in given["fsdp_config"].items()
        }


def test_the_plugin_of_fsdp_takes_the_config(monkeypatch):
    """accelerate makes its plugin of the environment that the launcher sets."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    words = ["--config_file", str(FILES / "accelerate_fsdp2.yaml"), "recipes/pretrain.py"]
    arguments = _validate_launch_command(launch_command_parser().parse_args(words))[0]
    for key, value in prepare_multi_gpu_env(arguments).items():
        if key.startswith(("FSDP_", "ACCELERATE_")):
            monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True and plugin.activation_checkpointing
    assert plugin.auto_wrap_policy.__name__ == "transformer_auto_wrap_policy"
    assert "SHARDED_STATE_DICT" in str(plugin.state_dict_type) and plugin.cpu_ram_efficient_loading


@pytest.mark.parametrize("rate", [1e-3, 3e-4])
def test_transformers_fills_the_deepspeed_config(monkeypatch, tmp_path, rate):
    """DeepSpeed itself is not needed to read it; what is "auto" becomes the recipe's numbers, and nothing contradicts them."""
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from transformers.integrations import deepspeed

    from hf_variants import VariantsConfig, VariantsForCausalLM

    class Read(deepspeed.HfTrainerDeepSpeedConfig, HfDeepSpeedConfig):
        """Without DeepSpeed transformers leaves the base of accelerate out."""

    monkeypatch.setattr(deepspeed, "dep_version_check", lambda package: None)
    config = Read(str(FILES / "deepspeed_zero3.json"))
    section = {"max_steps": 10, "bf16": True, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    arguments = training_arguments(spec_of("none", tmp_path, trainer={**section, "learning_rate": rate, "weight_decay": 0.05}))
    config.trainer_config_process(arguments)
    config.trainer_config_finalize(arguments, VariantsForCausalLM(VariantsConfig.from_preset("tiny/mla")), 10)
    assert "auto" not in json.dumps(config.config) and not config.mismatches
    assert config.is_zero3() and config.config["bf16"]["enabled"] is True
    made = config.config["optimizer"]["params"]
    assert (made["lr"], made["weight_decay"], made["betas"]) == (rate, 0.05, [0.9, 0.95])
    assert config.get_value("train_micro_batch_size_per_gpu") == 3 and config.get_value("gradient_accumulation_steps") == 2
    assert config.get_value("gradient_clipping") == 1.0
    assert config.is_true("zero_optimization.stage3_gather_16bit_weights_on_model_save")


def test_deepspeed_without_deepspeed_is_said_before_any_work(tmp_path):
    from importlib.util import find_spec

    if find_spec("deepspeed"):
        pytest.skip("DeepSpeed is installed")
    spec = spec_of("none", tmp_path, trainer={"deepspeed": str(FILES / "deepspeed_zero3.json")})
    with pytest.raises(ValueError, match="trainer: .*[Dd]eep[Ss]peed"):
        training_arguments(spec)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


@pytest.mark.slow
def test_two_machines_train_through_slurm(tmp_path):
    """The batch script with stand-ins for SLURM's two commands: `srun` starts the step on two machines, both here."""
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "scontrol").write_text("#!/usr/bin/env bash\necho 127.0.0.1\necho other-machine\n")
    (tools / "srun").write_text('#!/usr/bin/env bash\nshift\n"$@" &\nfirst=$!\n"$@"\nsecond=$?\nwait $first && exit $second\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    text = write_text(tmp_path / "text.txt", documents=10)
    spec = spec_of(text, tmp_path / "out", {**MODEL, "attention_dropout": 0.0}, trainer={"max_steps": 2})
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(spec.to_dict()))
    slurm = {"SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_ID": "7"}
    here = {"PATH": f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    here |= {"PORT": free_port(), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "RESTARTS": "0"}
    command = ["bash", str(FILES / "pretrain.slurm"), "recipes/pretrain.py", "--config", str(recipe)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **here, **slurm}, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    assert "on 2 process(es)" in done.stdout and done.stdout.count("tokenizer: training") == 1
    stage = json.loads((tmp_path / "out" / "stage.json").read_text())
    assert stage["status"] == "finished" and stage["result"]["steps"] == 2 and stage["settings"]["rows_per_step"] == 8


def test_the_first_machine_must_be_named():
    environment = {key: value for key, value in os.environ.items() if key != "HEAD"}
    command = ["bash", str(FILES / "torchrun_multi_node.sh"), "recipes/pretrain.py"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0 and "name the first machine: HEAD=host" in done.stderr
