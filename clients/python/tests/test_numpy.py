"""The numpy client against real servers: BRAID_TEST_COORDINATOR is server 0 of a fresh cluster."""

import gc
import os
import subprocess
import sys
import threading
import unittest

import numpy as np

import braid

COORDINATOR = os.environ["BRAID_TEST_COORDINATOR"]


class NumpyClient(unittest.TestCase):
    def setUp(self):
        self.client = braid.connect(COORDINATOR, name=self.id())
        self.addCleanup(self.client.close)

    def table(self, name, dim=4, optimizer=braid.sgd(0.5), client=None):
        return (client or self.client).create_table(
            name, dim, initializer=braid.uniform(-1, 1), optimizer=optimizer, seed=3
        )

    def test_rows_are_a_function_of_the_key(self):
        t = self.table("initial")
        rows = t.lookup([5, -1, 5, -1, 0])
        self.assertEqual(rows.dtype, np.float32)
        self.assertTrue((rows[0] == rows[2]).all() and (rows[1] == rows[3]).all())
        self.assertTrue((np.abs(rows) <= 1).all() and len(np.unique(rows)) == 12)
        self.assertTrue((rows[1] == t.lookup(np.array([2**64 - 1], np.uint64))).all())
        self.assertTrue((rows == self.table("initial").lookup([5, -1, 5, -1, 0])).all())
        self.assertEqual(t.lookup([]).shape, (0, 4))
        self.assertEqual(t.lookup(np.array([3], np.int32)).tobytes(), t.lookup([3]).tobytes())

    def test_push_is_one_step_a_row(self):
        t = self.table("push")
        before = t.lookup([1, 2])
        g = np.array([[1, 2, 3, 4], [1, 0, -1, 0], [10, 10, 10, 10]])
        t.push([1, 2, 1], g)
        np.testing.assert_allclose(t.lookup([1, 2]), before - 0.5 * np.array([g[0] + g[2], g[1]]), atol=1e-6)
        t.push([2], g[1:2], lr_scale=0)  # 0 means 1
        t.push([2], g[1:2], lr_scale=0.1)
        np.testing.assert_allclose(t.lookup([2])[0], before[1] - 1.05 * g[1], atol=1e-6)

    def test_adagrad_of_numpy(self):
        t = self.table("ada", optimizer=braid.adagrad(0.1, initial_accumulator=0.5))
        keys = np.arange(20)
        w, s = t.lookup(keys).astype(np.float64), np.full((20, 4), 0.5)
        rng = np.random.default_rng(1)
        for _ in range(10):
            k = rng.integers(0, 20, 30)
            g = rng.normal(size=(30, 4)).astype(np.float32)
            t.push(k, g)
            total = np.zeros((20, 4))
            np.add.at(total, k, g)
            s += total**2
            w -= 0.1 * total / (np.sqrt(s) + 1e-10)
        np.testing.assert_allclose(t.lookup(keys), w, atol=1e-5)

    def other(self, **options):
        c = braid.connect(COORDINATOR, name=self.id(), **options)
        self.addCleanup(c.close)
        return c

    def test_a_step_in_flight(self):
        c = self.other(steps_in_flight=1)
        t = self.table("ahead", optimizer=braid.sgd(1), client=c)
        keys, g = np.arange(50), np.ones((50, 4), np.float32)
        before = t.lookup(keys)
        for _ in range(7):
            t.push(keys, g)
            g[:] = 1  # the gradients have been taken
        c.wait()
        np.testing.assert_allclose(t.lookup(keys), before - 7, atol=1e-5)
        g[:] = np.nan  # found before anything is sent
        with self.assertRaises(braid.NotFinite):
            t.push(keys, g)
        with self.assertRaisesRegex(braid.InvalidArgument, "steps_in_flight"):
            self.other(steps_in_flight=1, consistency="sync")

    def test_bounded(self):
        """Two ranks, staleness 1: who is two steps ahead waits for the other one."""
        ranks = [self.other(consistency="bounded", staleness=1, rank=r, world=2) for r in range(2)]
        tables = [self.table("bounded", optimizer=braid.sgd(1), client=c) for c in ranks]
        ranks[1].join_job(ranks[0].open_job())
        before, one = tables[0].lookup([3]), np.ones((1, 4), np.float32)
        tables[0].push([3], one)
        tables[0].lookup([3])  # of step 2: step 0 of everybody
        tables[0].push([3], one)
        seen = []
        ahead = threading.Thread(target=lambda: seen.append(tables[0].lookup([3])))
        ahead.start()
        ahead.join(0.2)
        self.assertTrue(ahead.is_alive())  # of step 3: step 1 of everybody
        tables[1].push([3], one)
        ahead.join(20)
        np.testing.assert_allclose(seen[0], before - 3, atol=1e-6)
        ranks[1].context().step()  # every rank steps, with gradients or without
        self.assertEqual([c.last_step for c in ranks], [2, 2])
        with self.assertRaisesRegex(braid.InvalidArgument, "staleness"):
            self.other(staleness=3)

    def test_rows_and_gradients_travel_smaller(self):
        t = self.table("wire", dim=64, optimizer=braid.sgd(1))
        keys = np.arange(1000)
        rows = t.lookup(keys)
        for dtype, codec, error in (("bf16", "lz4", 2**-8), ("f16", "zstd", 2**-11), ("i8", "none", 2**-6)):
            c = self.other(wire_rows=dtype, wire_grads=dtype, wire_codec=codec)
            u = c.open_table("wire")
            np.testing.assert_allclose(u.lookup(keys), rows, atol=error)
            self.assertTrue((u.lookup(keys) != rows).any())
            u.push(keys, np.full((1000, 64), 0.5, np.float32))
            rows = rows - 0.5
            np.testing.assert_allclose(t.lookup(keys), rows, atol=1e-5)
        with self.assertRaisesRegex(braid.Unsupported, "f64"):
            self.other(wire_rows="f64")

    def test_what_a_step_survives(self):
        c = self.client
        for durability in ("checkpoint", "journal", "sync"):
            t = c.create_table(f"keep-{durability}", 4, durability=durability)
            t.push([1], np.ones((1, 4)))
        with self.assertRaisesRegex(braid.Mismatch, "durability"):
            c.create_table("keep-sync", 4, durability="journal")
        with self.assertRaisesRegex(braid.InvalidArgument, "durability"):
            c.create_table("keep-none", 4, durability="none")

    def test_bags_and_context(self):
        t, u = self.table("bags", optimizer=braid.sgd(1)), self.table("bags2", dim=3, optimizer=braid.sgd(1))
        ids, offsets = np.array([4, 5, 4, 6]), [0, 3, 3]
        batch = self.client.batch(
            [
                braid.Feature(t, ids, offsets),
                braid.Feature(t, ids, offsets, mode="mean"),
                braid.Feature(u, [9, 9]),
                braid.Feature(t, ids, offsets, weights=[1, 2, 3, 4]),
            ]
        )
        self.assertEqual(batch.n_unique, 4)
        rows = t.lookup(ids)
        total, mean, plain, weighted = batch.fetch().forward()
        np.testing.assert_allclose(total, [rows[:3].sum(0), np.zeros(4), rows[3]], rtol=1e-6)
        np.testing.assert_allclose(mean, [rows[:3].mean(0), np.zeros(4), rows[3]], rtol=1e-6)
        np.testing.assert_allclose(weighted[0], rows[0] + 2 * rows[1] + 3 * rows[2], rtol=1e-5, atol=1e-6)
        self.assertTrue((plain == u.lookup([9, 9])).all())
        context = self.client.context()
        g = np.ones((3, 4), np.float32)
        context.backward(batch, [g, None, None, None])
        context.backward(batch, [None, 3 * g, None, g])
        context.add(t, [6], g[:1])
        with self.assertRaises(braid.InvalidArgument):
            context.backward(batch, [g, None, None])
        with self.assertRaises(braid.InvalidArgument):
            context.backward(batch, [g[:2], None, None, None])
        step = self.client.last_step
        context.step()
        self.assertEqual(self.client.last_step, step + 1)
        # 4 twice in the bag: 1 + 1 from sum, 3 * (1/3 + 1/3) from mean, 1 + 3 from weights
        np.testing.assert_allclose((rows - t.lookup(ids))[:, 0], [8, 4, 8, 9], rtol=1e-5)
        context.add(t, [4], 100 * g[:1])
        context.clear()
        context.step()
        np.testing.assert_allclose((rows - t.lookup(ids))[:, 0], [8, 4, 8, 9], rtol=1e-5)

    def test_assign_and_export(self):
        t = self.table("import", dim=2, optimizer=braid.adagrad(0.1))
        rng = np.random.default_rng(2)
        keys = rng.integers(0, 2**63, 50_000).astype(np.uint64) * np.uint64(2)
        keys = np.unique(keys)
        rows, state = rng.normal(size=(len(keys), 2)).astype(np.float32), np.ones((len(keys), 2), np.float32)
        t.assign(keys, rows, state)
        k, r, s = (np.concatenate(x) for x in zip(*t.export(with_state=True)))
        order = np.argsort(k)
        self.assertTrue((k[order] == keys).all() and (r[order] == rows).all() and (s == 1).all())
        self.assertIsNone(next(iter(t.export()))[2])
        self.assertEqual(t.state_elems, 2)
        before = self.client.param_hash()
        t.assign(keys[:1], rows[:1] + 1)
        self.assertNotEqual(self.client.param_hash(), before)
        t.assign(keys[:1], rows[:1])
        self.assertEqual(self.client.param_hash(), before)

    def test_errors_are_exceptions_that_name_the_culprit(self):
        t = self.table("errors")
        with self.assertRaisesRegex(braid.Mismatch, "dim"):
            self.table("errors", dim=5)
        with self.assertRaisesRegex(braid.NotFound, "nobody"):
            self.client.open_table("nobody")
        with self.assertRaisesRegex(braid.NotFinite, "key 8"):
            t.push([7, 8], [[1, 1, 1, 1], [1, float("nan"), 1, 1]])
        with self.assertRaisesRegex(ValueError, r"\(1, 3\)"):
            t.push([7], np.zeros((1, 3)))
        with self.assertRaisesRegex(ValueError, "float64"):
            t.lookup([1.5])
        with self.assertRaisesRegex(ValueError, "consistency"):
            braid.connect(COORDINATOR, consistency="eventual")
        with self.assertRaisesRegex(braid.InvalidArgument, "offsets"):
            self.client.batch([braid.Feature(t, [1, 2], [0, 3])])
        with self.assertRaises(ConnectionError) as caught:
            braid.connect("127.0.0.1:1", connect_wait=0.2)
        self.assertEqual(caught.exception.status, -6)
        with self.assertRaisesRegex(braid.BraidError, "adagrat"):
            self.table("typo", optimizer=braid.Spec("adagrat"))

    def test_a_newer_job_fences_an_older_one(self):
        t = self.table("fence")
        t.push([1], np.ones((1, 4)))
        with braid.connect(COORDINATOR) as newer:
            self.table("fence", client=newer).push([1], np.ones((1, 4)))
            with self.assertRaises(braid.Fenced):
                t.push([1], np.ones((1, 4)))
            self.assertEqual(newer.open_table("fence").lookup([1]).shape, (1, 4))

    def test_ranks_step_together(self):
        ranks = [
            braid.connect(COORDINATOR, consistency="sync", reduce="mean", rank=r, world=2) for r in range(2)
        ]
        tables = [self.table("sync", client=c) for c in ranks]
        before = tables[0].lookup([1])
        ranks[1].join_job(ranks[0].open_job())
        failed = []

        def run(rank):
            try:
                for step in range(1, 6):
                    tables[rank].push([1], np.full((1, 4), step * (rank + 1)))
            except Exception as e:  # seen by the main thread
                failed.append(e)

        threads = [threading.Thread(target=run, args=(r,)) for r in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        self.assertEqual(failed, [])
        self.assertEqual([c.last_step for c in ranks], [5, 5])
        np.testing.assert_allclose(tables[0].lookup([1]), before - 0.5 * 15 * 1.5, rtol=1e-6)
        ranks[0].checkpoint("python")
        ranks[0].delete_checkpoint("python")
        with self.assertRaises(braid.BraidError):
            ranks[0].checkpoint("no/slashes")
        for c in ranks:
            c.close()

    def test_closing_frees_everything_once(self):
        client = braid.connect(COORDINATOR)
        t = self.table("close", client=client)
        batch, context = client.batch([braid.Feature(t, [1])]), client.context()
        pages = t.export()
        client.close()
        client.close()
        for use in (batch.forward, context.step, lambda: t.lookup([1]), lambda: next(pages)):
            with self.assertRaises(braid.WrongState):
                use()
        del batch, context, t, pages
        gc.collect()

    def test_rows_of_fewer_bits(self):
        rows = {}
        for dtype in ("f32", "f16", "bf16", "i8"):
            t = self.client.create_table(
                f"rows-{dtype}", 16, initializer=braid.constant(0), optimizer=braid.sgd(1), dtype=dtype
            )
            t.push([1], -np.linspace(-1, 1, 16, dtype=np.float32)[None])
            rows[dtype] = t.lookup([1])
        for dtype, steps in (("f16", 2**11), ("bf16", 2**8), ("i8", 127)):
            self.assertGreater(np.abs(rows[dtype] - rows["f32"]).max(), 0)
            self.assertLess(np.abs(rows[dtype] - rows["f32"]).max(), 2 / steps)
        with self.assertRaisesRegex(braid.BraidError, "dtype"):
            self.client.create_table("rows-f99", 4, dtype="f99")

    def test_a_forked_child_can_end_but_not_use_it(self):
        t = self.table("fork")
        batch = self.client.batch([braid.Feature(t, [1])])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                batch.forward()
            except braid.WrongState as e:
                code = 0 if "fork" in str(e) else 2
            self.client.close()
            batch.close()
            os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(batch.forward()[0].shape, (1, 4))

    def test_an_open_client_does_not_hold_up_the_exit(self):
        script = "import os, braid; c = braid.connect(os.environ['BRAID_TEST_COORDINATOR']); b = c.batch([])"
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, b""))

    def test_threads_share_a_client(self):
        t = self.table("threads", optimizer=braid.sgd(1))
        before = t.lookup(range(8))
        failed = []

        def run(key):
            try:
                for step in range(1, 26):
                    t.push([key, 100], np.ones((2, 4)))
                    assert np.allclose(t.lookup([key]), before[key] - step, atol=1e-4)
            except Exception as e:  # seen by the main thread
                failed.append(e)

        threads = [threading.Thread(target=run, args=(key,)) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.assertEqual(failed, [])
        np.testing.assert_allclose(t.lookup(range(8)), before - 25, atol=1e-4)

    def test_references_stay_on_their_server(self):
        t = self.table("kept", optimizer=braid.sgd(1))
        for server in range(self.client.n_servers):
            ids = [k for k in range(200) if self.client.server_of(k) == server][:4]
            rows = t.lookup(ids)
            ref = self.client.remote(braid.Feature(t, ids), server)
            bags = self.client.remote(braid.Feature(t, ids, [0, 3], mode="mean"), server)
            self.assertEqual((ref.owner, ref.shape), (f"ps-{server}", (4, 4)))
            self.assertTrue((ref.to_here() == rows).all())
            t.push(ids, np.ones((4, 4)))
            self.client.keep_alive()
            self.assertTrue((ref.to_here() == rows).all())  # as it was
            np.testing.assert_allclose(bags.to_here(), [rows[:3].mean(0), rows[3]], rtol=1e-6)
            ref.close()
            with self.assertRaises(braid.WrongState):
                ref.to_here()
        key = next(k for k in range(200) if self.client.server_of(k) == self.client.n_servers - 1)
        if self.client.n_servers > 1:
            with self.assertRaisesRegex(braid.InvalidArgument, f"key {key} is on server"):
                self.client.remote(braid.Feature(t, [key]), 0)
        with self.assertRaisesRegex(braid.InvalidArgument, "offset 1 at 0"):
            self.client.remote(braid.Feature(t, [key], [1]), self.client.n_servers - 1).to_here()
        self.assertEqual(self.client.server_of(-1), self.client.server_of(2**64 - 1))

    def test_stats_of_every_server(self):
        stats = self.client.stats()
        self.assertEqual(len(stats), self.client.n_servers)
        self.assertTrue(all(len(s) > 3 for s in stats))


if __name__ == "__main__":
    unittest.main()
