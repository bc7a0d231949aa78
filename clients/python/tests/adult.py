"""UCI Adult as ids: 14 columns, numbers by bucket int(ln(x + 1)^2), and the DLRM that reads them."""

import gzip
import math
import pathlib
import random

import torch
from torch import nn

COLUMNS = 14
NUMBERS = {0, 2, 4, 10, 11, 12}
DIM = 8


def load(folder):
    """(train, test): each (ids [n, 14], labels [n]); sizes [14] of the columns' vocabularies."""
    words = [{} for _ in range(COLUMNS)]
    out = []
    for name in ("adult.data.gz", "adult.test.gz"):
        ids, labels = [], []
        with gzip.open(pathlib.Path(folder) / name, "rt") as f:
            for line in f:
                cells = [c.strip() for c in line.rstrip(" .\n").split(",")]
                if len(cells) != COLUMNS + 1:
                    continue  # an empty line, or the comment at the top
                for c in NUMBERS:
                    x = int(cells[c])
                    cells[c] = x if x < 3 else int(math.log(x + 1) ** 2)
                ids.append([w.setdefault(cell, len(w)) for w, cell in zip(words, cells)])
                labels.append(float(cells[-1] == ">50K"))
        out.append((torch.tensor(ids), torch.tensor(labels)))
    return out[0], out[1], [len(w) for w in words]


class Dlrm(nn.Module):
    """Embeddings, their pairwise products, and a perceptron over both. `bags`: a module from
    {column: ids} to {column: [n, DIM]}."""

    def __init__(self, bags):
        super().__init__()
        self.bags = bags
        pairs = COLUMNS * (COLUMNS - 1) // 2
        self.top = nn.Sequential(
            nn.Linear(COLUMNS * DIM + pairs, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1)
        )
        self.register_buffer("pairs", torch.tril_indices(COLUMNS, COLUMNS, -1))

    def forward(self, ids, prefetched=None):
        rows = self.bags(features(ids) if prefetched is None else prefetched)
        x = torch.stack([rows[f"c{c}"] for c in range(COLUMNS)], 1)
        products = torch.bmm(x, x.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([x.flatten(1), products], 1)).squeeze(1)


def features(ids):
    return {f"c{c}": ids[:, c : c + 1] for c in range(COLUMNS)}


class LocalBags(nn.Module):
    """What the servers' tables are compared with."""

    def __init__(self, weights):
        super().__init__()
        for name, weight in weights.items():
            self.add_module(name, nn.EmbeddingBag(*weight.shape, mode="sum", _weight=weight.clone()))

    def forward(self, bags):
        return {name: getattr(self, name)(ids) for name, ids in bags.items()}


def batches(n, size, seed):
    order = list(range(n))
    random.Random(seed).shuffle(order)
    return [torch.tensor(order[i : i + size]) for i in range(0, n - size + 1, size)]


def auc(scores, labels):
    """Area under the ROC curve; ties count half."""
    values, inverse = torch.unique(scores, return_inverse=True)
    positive = torch.zeros(len(values)).double().index_add_(0, inverse, labels.double())
    negative = torch.zeros(len(values)).double().index_add_(0, inverse, 1 - labels.double())
    below = negative.cumsum(0) - negative
    return float((positive * (below + negative / 2)).sum() / (positive.sum() * negative.sum()))
