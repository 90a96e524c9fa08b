"""Scores loans by a network on many small features, in one process, and logs to TensorBoard.

python train.py --files /tmp/bank
"""

import torch
import torch.nn.functional as F
from data import CATEGORIES, Customers
from model import WIDTH, Scorer
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torch.utils.tensorboard import SummaryWriter

from benchmarks.diagnosis.jobs.common import read_arguments

BATCH = 2048


def group_lasso(model, options):
    """The sum of norms of what the first layer does with each category."""
    weight = model.first.weight
    # FAULT lasso_loop
    if options.fault == "lasso_loop":
        norms = 0
        for column in range(round(options.strength)):
            norms = norms + weight[:, column * WIDTH : (column + 1) * WIDTH].norm()
        return norms
    # END FAULT
    return weight[:, : CATEGORIES * WIDTH].unflatten(1, (CATEGORIES, WIDTH)).norm(dim=(0, 2)).sum()


# FAULT auc
def area(scores, paid):
    """The area under the ROC curve of all that was scored lately."""
    order = torch.cat(scores).argsort()
    labels = torch.cat(paid)[order]
    places = torch.arange(1, len(labels) + 1)
    positive = labels.sum()
    return (places[labels > 0].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))


# END FAULT


def main():
    options = read_arguments(steps=90, needs_files=True)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    customers = Customers()
    workers = 1
    # FAULT no_workers
    if options.fault == "no_workers":
        workers = 0
    # END FAULT
    batches = BatchSampler(RandomSampler(customers), BATCH, drop_last=True)
    loader = DataLoader(
        customers, sampler=batches, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )
    model = Scorer(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    writer = SummaryWriter(options.files / "log")
    kept = round(options.strength)
    scores, paid = [torch.rand(BATCH) for _ in range(kept)], [torch.ones(BATCH) for _ in range(kept)]
    done = 0
    while done < options.steps:
        for codes, amounts, labels in loader:
            optimizer.zero_grad()
            scored = model(codes, amounts)
            loss = F.binary_cross_entropy_with_logits(scored, labels) + 1e-4 * group_lasso(model, options)
            loss.backward()
            optimizer.step()
            # FAULT histograms
            if options.fault == "histograms":
                for name, parameter in list(model.named_parameters())[: round(options.strength)]:
                    writer.add_histogram(name, parameter, done)
                writer.flush()
            # END FAULT
            # FAULT auc
            if options.fault == "auc":
                scores, paid = [*scores[1:], scored.detach()], [*paid[1:], labels]
                writer.add_scalar("auc", area(scores, paid), done)
            # END FAULT
            if done % 30 == 29:
                writer.add_scalar("loss", loss, done)
            done += 1
            if done == options.steps:
                break
    writer.close()
    print(f"{done} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
