"""A whole trainer over Braid's Python client, numpy only: the ratings of a planted model are learned by
matrix factorisation, as in ../c/trainer.c. The embeddings live on the parameter servers.

    PYTHONPATH=clients/python python3 examples/python/trainer.py HOST:PORT   (of server 0)
"""

import sys
from typing import Tuple

import braid
import numpy as np
import numpy.typing as npt

DIM, BATCH, STEPS, USERS, ITEMS = 8, 256, 400, 300, 200
Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


def loss_and_gradients(users: Ids, items: Ids, u: Floats, v: Floats) -> Tuple[float, Floats, Floats]:
    """Half the mean squared error of <u, v> against the planted rating."""
    miss = ((u * v).sum(axis=1) - np.sin(users) * np.cos(items)).astype(np.float32)
    scaled = miss[:, np.newaxis] / np.float32(BATCH)
    return float((miss**2).mean() / 2), scaled * v, scaled * u


def make_table(client: braid.Client, name: str) -> braid.Table:
    start, optimizer = braid.normal(0, 0.3), braid.adagrad(0.1)
    return client.create_table(name, DIM, initializer=start, optimizer=optimizer)


def main(coordinator: str) -> None:
    rng = np.random.default_rng(1)
    with braid.connect(coordinator, name="trainer") as client:
        user, item = make_table(client, "py_user"), make_table(client, "py_item")
        context = client.context()
        for step in range(1, STEPS + 1):
            users, items = rng.integers(0, USERS, BATCH), rng.integers(0, ITEMS, BATCH)
            batch = client.batch([braid.Feature(user, users), braid.Feature(item, items)])
            u, v = batch.forward()  # one request a server
            loss, grad_u, grad_v = loss_and_gradients(users, items, u, v)
            context.backward(batch, [grad_u, grad_v])
            context.step()  # every row's optimiser runs once, on its server
            if step == 1 or step % 100 == 0:
                print(f"step {step} loss {loss:.5f}")
        client.checkpoint("trained")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7700")
