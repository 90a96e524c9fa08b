"""The folder `raw` of a recording."""

from esprof.recorder.launcher.raw_folder import make_raw
from esprof.run.raw.settings import Settings


def test_a_secret_of_the_command_is_stored_nowhere(tmp_path):
    raw, command = tmp_path / "run" / "raw", ("python", "train.py", "--wandb-key=s3cr3t", "--token", "s3cr3t")
    raw.parent.mkdir()
    make_raw(raw, command, Settings())
    assert b"s3cr3t" not in b"".join(file.read_bytes() for file in raw.rglob("*") if file.is_file())
