"""Values that must be the same on all ranks of a job: its definition, its start, and the inputs of each step."""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from esprof.core.assignment import Assignment
from esprof.core.errors import EsprofError
from esprof.elastic.checkpoint import checkpoint as saved_checkpoint
from esprof.elastic.checkpoint import extra
from esprof.elastic.data.feed import Feed
from esprof.elastic.data.loaders import Loaders
from esprof.elastic.data.order import SampleOrder
from esprof.elastic.data.threads import blas_threads, use_threads
from esprof.elastic.options import Checkpoint, Data, Gradients, Proof, Updates
from esprof.elastic.runtime.agree import gather_values, together
from esprof.elastic.runtime.phases import LossFn
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify import processes
from esprof.elastic.verify.fingerprint import (
    FIRST_BATCHES,
    Level,
    agree,
    check_unchanged,
    group_fields,
    kernel_settings,
    machine_fields,
    model_fields,
    optimizer_fields,
    plain,
    require_alike,
)
from esprof.elastic.verify.script import Script, code_fields, surrounding_fields
from esprof.elastic.verify.steplog import Fingerprint, Scalar, Value

_THREADS_OF_A_NEW_JOB = 1
"""What torchrun gives to each of several processes on a machine; to a single one it leaves all CPUs."""

_SAME_CALLS_REMEDY = "Let every rank make the same calls between the same two steps, and set the same."


@dataclass(frozen=True)
class JobAgreement:
    """What the ranks agreed on before the first step. Later steps are checked against it."""

    transport: Transport
    fingerprint: Fingerprint
    settings: Mapping[str, Scalar]
    """Settings of this process that choose kernels, as they were at the time of the agreement."""

    @classmethod
    def reach(
        cls,
        level: Level,
        transport: Transport,
        state: TrainingState,
        assignment: Assignment,
        job: dict[str, Value],
        start: dict[str, object],
        script: Script,
    ) -> "JobAgreement":
        """Let all ranks agree, and at D1 report where the script reads the number of processes. Raises MismatchError if the
        ranks belong to different jobs or start the job differently."""
        terms, ests = step_terms(state, assignment) | start, json.dumps(assignment.ests)
        fingerprint = agree(level, transport, job, machine_fields(state.device), terms, ests)
        code, around = gather_values(transport, (script.code, script.around))[0]
        fingerprint = msgspec.structs.replace(fingerprint, code=code, around=around)
        if level == "D1" and transport.rank == 0:
            processes.report()
        return cls(transport, fingerprint, kernel_settings())

    def check_settings(self) -> None:
        """Raise UsageError if this process has since changed a setting that chooses kernels."""
        check_unchanged(self.settings, self.fingerprint.determinism)

    def check_alike(self, step: int, fields: Mapping[str, object]) -> None:
        """Raise MismatchError for the first of the fields that is not the same on all ranks, before or in this step."""
        require_alike(self.transport, f"step {step}", fields, _SAME_CALLS_REMEDY)


def job_fields(
    state: TrainingState, order: SampleOrder, data: Data, updates: Updates, gradients: Gradients
) -> dict[str, Value]:
    """The fields of the fingerprint that define the job."""
    own = {
        "loaders": isinstance(data.dataset, Loaders),
        "amp": gradients.amp,
        "reduction": gradients.reduction,
        # The bits of a tree's sum do not depend on the buckets.
        "bucket_mb": gradients.bucket_mb if gradients.reduction == "ring" else None,
        "codec": gradients.codec,
        "clip_norm": gradients.clip_norm,
        "find_unused": gradients.find_unused,
        "scheduler": ", ".join(type(scheduler).__name__ for scheduler in state.schedulers) or None,
        "scheduler_by": updates.scheduler_by,
    }
    return {**order.fields(), **own, **optimizer_fields(state.optimizers), **model_fields(state.model)}


def script_of(
    state: TrainingState, losses: Sequence[LossFn], data: Data, batches: Feed, proof: Proof, transport: Transport
) -> Script:
    """What the script computes with. All ranks call this. Raises UsageError where its first batches cannot be made."""
    code = code_fields(state.model, state.reached.modules, losses, data.dataset, data.collate_fn)
    with together(transport):
        if proof.prove_every != 0 and (first := batches.first_batches()) is not None:
            code[FIRST_BATCHES] = first
    return Script(code, surrounding_fields(state.model))


def start_terms(
    state: TrainingState,
    gradients: Gradients,
    proof: Proof,
    checkpoint: Checkpoint | None,
    asked: Mapping[str, bool],
) -> dict[str, object]:
    """Values that must be the same on all ranks when a job starts or resumes, but may differ between starts. `asked`
    says whether there is telemetry, a source of plans and a drain."""
    return {
        "scheduler": [plain(scheduler.state_dict()) for scheduler in state.schedulers],
        "bucket_mb": gradients.bucket_mb,
        "telemetry": asked["telemetry"],
        "hash_log": proof.hash_log is not None,
        "prove_every": proof.prove_every,
        "on_divergence": proof.on_divergence,
        "checkpoint": checkpoint is not None,
        "checkpoint_every": checkpoint.every if checkpoint is not None else 0,
        "checkpoint_max_overhead": checkpoint.max_overhead if checkpoint is not None else None,
        **(extra.digests(*extra.pack_extra(state.model, state.own)) if checkpoint is not None else {}),
        "plan": asked["plan"],
        "drain": asked["drain"],
    }


def step_terms(state: TrainingState, assignment: Assignment) -> dict[str, object]:
    """Inputs of a step that may change between steps."""
    return {
        "assignment": json.dumps(assignment.ests),
        "codecs": json.dumps(state.codecs),
        # A script that evaluates on one rank alone may forget train() there.
        "eval": [name for name, module in state.model.named_modules() if not module.training],
        **group_fields(state.optimizers),
    }


def set_threads(asked: int | None, saved: Checkpoint | None, transport: Transport) -> None:
    """Set the CPU threads of this process, those of NumPy's BLAS included, to `asked`, or to the number of the checkpoint;
    rank 0 reports a change. All ranks call this."""
    found = _of_checkpoint(Path(saved.folder)) if saved is not None and transport.rank == 0 else None
    now = asked or gather_values(transport, found)[0] or _THREADS_OF_A_NEW_JOB
    before = next((count for count in (torch.get_num_threads(), blas_threads()) if count not in (None, now)), now)
    use_threads(now)
    if now != before and transport.rank == 0:
        by_itself = "as in the job's checkpoint" if found else "so that bits do not depend on the number of processes"
        why = "as asked for" if asked else f"{by_itself}; Proof(threads=N) sets another number"
        sys.stderr.write(f"esprof: {now} CPU thread{'s' * (now > 1)} a process, not {before}: {why}\n")


def _of_checkpoint(folder: Path) -> int | None:
    """The number of threads with which the job in this folder was trained; None without a readable checkpoint."""
    with suppress(EsprofError):  # Errors are reported when the checkpoint is loaded.
        for path in reversed(saved_checkpoint.in_folder(folder)):
            with suppress(EsprofError):
                threads = saved_checkpoint.read_manifest(path).fingerprint.machine.get("threads")
                return threads if isinstance(threads, int) else None
    return None
