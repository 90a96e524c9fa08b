"""Speech recognition with CTC on made-up utterances.

PYTHONPATH=. torchrun --nproc-per-node 2 benchmarks/diagnosis/jobs/eighth/speech/train.py --files /tmp/speech
"""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from data import LETTERS, RATE, Collate, ReadLexicon, Utterances, write_lexicon
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WINDOW, HOP = 256, 80
BATCH = 10
STEPS_PER_EPOCH = 10


class Recognizer(nn.Module):
    def __init__(self, hidden=112):
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.front = nn.Sequential(
            nn.Conv1d(WINDOW // 2 + 1, hidden, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(hidden, hidden, 3, padding=1),
        )
        self.rnn = nn.GRU(hidden, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(2 * hidden, len(LETTERS))

    def forward(self, waves):
        spectra = torch.stft(waves, WINDOW, HOP, window=self.window, return_complex=True).abs()
        features = self.front(torch.log1p(spectra)).transpose(1, 2)
        return self.head(self.rnn(features)[0]).log_softmax(-1)


# FAULT alignments
def align(scores, letters):
    """When each letter is said: the best way through frames and letters (Viterbi)."""
    states = [0]
    for letter in letters:
        states += [letter, 0]
    best = [scores[0][states[0]]] + [-1e9] * (len(states) - 1)
    back = []
    for frame in scores[1:]:
        after, came = [], []
        for i, state in enumerate(states):
            ways = [(best[i], i), (best[i - 1], i - 1) if i else (-1e9, i)]
            if i > 1 and state and state != states[i - 2]:
                ways.append((best[i - 2], i - 2))
            score, source = max(ways)
            after.append(score + frame[state])
            came.append(source)
        best, back = after, [*back, came]
    path = [len(states) - 1]
    for came in reversed(back):
        path.append(came[path[-1]])
    return path[::-1]


# END FAULT


# FAULT denoise
def denoise(wave):
    """Spectral subtraction, a frame at a time."""
    out = np.zeros_like(wave)
    quiet = np.abs(np.fft.rfft(wave[:WINDOW]))
    for start in range(0, len(wave) - WINDOW, WINDOW // 8):
        spectrum = np.fft.rfft(wave[start : start + WINDOW] * np.hanning(WINDOW))
        loud = np.maximum(np.abs(spectrum) - 0.1 * quiet, 0)
        out[start : start + WINDOW] += np.fft.irfft(loud * np.exp(1j * np.angle(spectrum)))
    return out


# END FAULT


def my_share(lengths, rank, world, options):
    """Every world-th utterance, mixed."""
    order = np.random.default_rng(options.seed).permutation(len(lengths))
    mine = order[rank::world]
    # FAULT sorted_shards
    if options.fault == "sorted_shards" and rank == options.rank:
        # The shards were cut from a list that is sorted by length.
        mine = np.argsort(lengths)[-int(options.strength * len(lengths)) :]
        mine = np.resize(mine, len(order) // world)
    # END FAULT
    return mine.tolist()


def main():
    args = read_arguments(steps=80, needs_files=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    args.files.mkdir(parents=True, exist_ok=True)
    lexicon = args.files / "lexicon.json"
    if rank == 0:
        write_lexicon(lexicon)
    dist.barrier()

    corpus = Utterances(world * BATCH * STEPS_PER_EPOCH, args.seed)
    subset = Subset(corpus, my_share(corpus.lengths, rank, world, args))
    settings = {"num_workers": 1, "persistent_workers": True}
    # FAULT fresh_workers
    if args.fault == "fresh_workers":
        settings = {"num_workers": 2, "worker_init_fn": ReadLexicon(lexicon, int(args.strength))}
    # END FAULT
    loader = DataLoader(subset, BATCH, shuffle=True, drop_last=True, collate_fn=Collate(args), **settings)
    model = DDP(Recognizer())
    ctc = nn.CTCLoss(zero_infinity=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step = 0
    dwell = []
    while step < args.steps:
        for waves, wave_lengths, targets, target_lengths in loader:
            # FAULT denoise
            if args.fault == "denoise":
                for row in range(int(args.strength)):
                    waves[row] = torch.from_numpy(denoise(waves[row].numpy()))
            # END FAULT
            log_probs = model(waves)
            frames = (wave_lengths * log_probs.shape[1]) // waves.shape[1]
            loss = ctc(log_probs.transpose(0, 1), targets, frames, target_lengths)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            # FAULT alignments
            if args.fault == "alignments":
                scores = log_probs.detach().tolist()
                letters = [said.tolist() for said in targets.split(target_lengths.tolist())]
                paths = [align(*pair) for pair in list(zip(scores, letters, strict=True))[: int(args.strength)]]
                dwell.append(sum(map(len, paths)))
            # END FAULT
            step += 1
            if step % 20 == 0 and rank == 0:
                print(f"{step:4d} ctc {loss.item():.3f} seconds {waves.shape[1] / RATE:.1f}", flush=True)
            if step == args.steps:
                break
    leave()


if __name__ == "__main__":
    main()
