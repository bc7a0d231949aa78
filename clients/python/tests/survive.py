"""Counts steps in rows: after N steps each row must be -N, whatever happened to the servers meanwhile.
BRAID_TEST_COORDINATOR; argument: async or sync. Prints the number of each finished step."""

import os
import sys

import numpy as np

import braid

STEPS = 300
consistency = sys.argv[1]
with braid.connect(os.environ["BRAID_TEST_COORDINATOR"], consistency=consistency, ps_wait=60) as client:
    table = client.create_table(
        f"survive-{consistency}", 2, initializer=braid.constant(0), optimizer=braid.sgd(1)
    )
    keys = np.arange(64)
    for step in range(1, STEPS + 1):
        table.push(keys, np.ones((64, 2)))
        print(step, flush=True)
        if step % 50 == 0:
            rows = table.lookup(keys)
            assert (rows == -step).all(), f"step {step}: rows are {np.unique(rows)}"
