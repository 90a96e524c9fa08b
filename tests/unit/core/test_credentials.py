"""Secrets in command lines."""

import pytest

from esprof.core.credentials import is_redacted, without_secrets

HF, AWS = "hf_" + 20 * "a", "AKIA" + 16 * "B"


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("--wandb-key=abc123", "--wandb-key=REDACTED"),
        ("--wandb_api_key=abc", "--wandb_api_key=REDACTED"),
        ("--token=abc", "--token=REDACTED"),
        ("WANDB_API_KEY=abc", "WANDB_API_KEY=REDACTED"),
        ("HF_TOKEN=abc", "HF_TOKEN=REDACTED"),
        ("logger.wandb.api_key=abc", "logger.wandb.api_key=REDACTED"),
        ("+logger.password=abc", "+logger.password=REDACTED"),
        ("AWS_SECRET_ACCESS_KEY=abc/d", "AWS_SECRET_ACCESS_KEY=REDACTED"),
        ("s3://me:secret@host/bucket", "s3://me:REDACTED@host/bucket"),
        (f"--data={HF}", "--data=REDACTED"),
        (AWS, "REDACTED"),
        (
            "cd x && HF_TOKEN='a b' python train.py --api-key abc",
            "cd x && HF_TOKEN=REDACTED python train.py --api-key REDACTED",
        ),
    ],
)  # fmt: skip
def test_a_secret_is_redacted(word, shown):
    assert without_secrets([word]) == (shown,)
    assert without_secrets([shown]) == (shown,)
    assert is_redacted([shown])


def test_the_value_of_an_option_is_redacted():
    given = ("train.py", "--wandb-key", "abc", "--token", "--fast", "-x", "1")
    shown = ("train.py", "--wandb-key", "REDACTED", "--token", "--fast", "-x", "1")
    assert without_secrets(given) == shown == without_secrets(shown)


@pytest.mark.parametrize(
    "word",
    [
        "--max-tokens=2048", "--tokens-per-batch=8", "--tokenizer=gpt2", "--keys=4", "--monkey=1", "--pattern=a",
        "keypoints=17", "https://host:8080/path", "--lr=3e-4", "train.py", "--keyframes=2", "--secretary=x",
    ],
)  # fmt: skip
def test_other_words_stay(word):
    assert without_secrets([word]) == (word,)
    assert not is_redacted([word])
