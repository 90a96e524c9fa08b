"""Which variables belong to a recorded command, and what changes when it is run again."""

import msgspec

from esprof.run.raw.relaunch import Relaunch, changes, that_matters
from esprof.run.raw.settings import Settings


def test_variables_that_matter_for_speed_are_kept_and_secrets_are_not():
    environ = {
        "OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring", "TORCHINDUCTOR_CACHE_DIR": "/c", "CUDA_VISIBLE_DEVICES": "0",
        "PYTHONHASHSEED": "0", "HOME": "/root", "WANDB_API_KEY": "abc", "TORCH_HUB_TOKEN": "abc", "PATH": "/bin",
    }  # fmt: skip
    assert list(that_matters(environ)) == [
        "CUDA_VISIBLE_DEVICES", "NCCL_ALGO", "OMP_NUM_THREADS", "PYTHONHASHSEED", "TORCHINDUCTOR_CACHE_DIR",
    ]  # fmt: skip


def test_variables_are_set_as_recorded_and_others_that_matter_are_removed():
    recorded = {"OMP_NUM_THREADS": "4", "NCCL_ALGO": "Ring"}
    now = {"OMP_NUM_THREADS": "8", "NCCL_ALGO": "Ring", "MKL_NUM_THREADS": "2", "HOME": "/root"}
    assert changes(recorded, now) == {"MKL_NUM_THREADS": None, "OMP_NUM_THREADS": "4"}
    assert changes(recorded, recorded) == {}


def test_it_is_written_and_read_with_its_settings():
    settings = Settings(steps=4, knobs=(("threads", None),), probed=("links",))
    whole = Relaunch(folder="/job", environment={"OMP_NUM_THREADS": "1"}, settings=settings)
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Relaunch) == whole
