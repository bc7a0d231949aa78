"""The PyTorch modules against real servers: BRAID_TEST_COORDINATOR is server 0 of a fresh cluster,
BRAID_TEST_ADULT the folder of UCI Adult."""

import os
import tempfile
import threading
import unittest

import adult
import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import braid
import braid.torch

COORDINATOR = os.environ["BRAID_TEST_COORDINATOR"]
ADULT = os.environ.get("BRAID_TEST_ADULT", "")
STEPS = 100
OPTIMIZERS = {
    "sgd": (braid.sgd(0.1), lambda p: torch.optim.SGD(p, 0.1)),
    "adagrad": (braid.adagrad(0.05), lambda p: torch.optim.Adagrad(p, 0.05, eps=1e-10)),
}


def make_bags(client, prefix, optimizer):
    return braid.torch.EmbeddingBagCollection(
        client,
        [
            braid.torch.BagConfig(
                f"{prefix}-{c}", adult.DIM, [f"c{c}"], initializer=braid.normal(0, 0.1), optimizer=optimizer
            )
            for c in range(adult.COLUMNS)
        ],
    )


def twin(bags, prefix, sizes):
    """The same model with local embeddings, and with the same numbers in it."""
    weights = {f"c{c}": bags.export_weight(f"{prefix}-{c}", sizes[c]) for c in range(adult.COLUMNS)}
    torch.manual_seed(7)
    remote = adult.Dlrm(bags)
    torch.manual_seed(7)
    return remote, adult.Dlrm(adult.LocalBags(weights))


def compare(client, remote, local, make_optimizer, data, rank=0, world=1):
    """Largest difference of the losses of STEPS steps, remote and local side by side."""
    ids, labels = data
    loss_fn = nn.BCEWithLogitsLoss()
    of_dense, of_all = make_optimizer(remote.parameters()), make_optimizer(local.parameters())
    worst, losses = 0.0, []
    for step, rows in enumerate(adult.batches(len(ids), 256, 1)[:STEPS]):
        mine = rows[rank::world]
        with braid.torch.context(client) as context:
            loss = loss_fn(remote(ids[mine]), labels[mine])
            of_dense.zero_grad()
            loss.backward()
            of_dense.step()
            context.step()
        reference = loss_fn(local(ids[mine]), labels[mine])
        of_all.zero_grad()
        reference.backward()
        of_all.step()
        worst = max(worst, abs(loss.item() - reference.item()))
        losses.append(loss.item())
    assert len(losses) == STEPS and losses[-1] < losses[0]
    return worst


def run_rank(rank, world, port_file, prefix, queue):
    """One process of the DDP tests."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{port_file}", rank=rank, world_size=world)
    train, test, sizes = adult.load(ADULT)
    client = braid.torch.connect(COORDINATOR, consistency="sync")
    try:
        for name, (on_servers, local_optimizer) in OPTIMIZERS.items():
            remote, local = twin(make_bags(client, f"{prefix}-{name}", on_servers), f"{prefix}-{name}", sizes)
            torch.distributed.barrier()  # both have read the first rows
            worst = compare(
                client, DistributedDataParallel(remote), DistributedDataParallel(local), local_optimizer, train, rank, world
            )
            queue.put((rank, name, worst))
        queue.put((rank, "auc", train_to_the_end(client, prefix, train, test, rank, world)))
    finally:
        torch.distributed.barrier()
        client.close()
        torch.distributed.destroy_process_group()


def train_to_the_end(client, prefix, train, test, rank, world, epochs=10):
    """AUC on the test rows after a whole training with prefetch and a schedule."""
    bags = make_bags(client, f"{prefix}-auc", braid.adagrad(0.05, l2=1e-4))
    torch.manual_seed(7)
    model = DistributedDataParallel(adult.Dlrm(bags))
    optimizer = torch.optim.Adagrad(model.parameters(), 0.01)
    loss_fn, (ids, labels) = nn.BCEWithLogitsLoss(), train
    plan = [rows[rank::world] for epoch in range(epochs) for rows in adult.batches(len(ids), 256, epoch)]
    ahead = braid.torch.prefetching(plan, bags, lambda rows: adult.features(ids[rows]))
    for step, (rows, prefetched) in enumerate(ahead):
        left = 1 - step / len(plan)
        optimizer.param_groups[0]["lr"] = 0.01 * left
        with braid.torch.context(client) as context:
            loss = loss_fn(model(ids[rows], prefetched), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            context.step(left)
    model.eval()
    return adult.auc(model(test[0]).detach(), test[1])


class Torch(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)
        self.client = braid.torch.connect(COORDINATOR)
        self.addCleanup(self.client.close)

    def bag(self, name, mode, **options):
        return braid.torch.EmbeddingBag(
            self.client, name, 5, mode=mode, optimizer=braid.sgd(1.0), **options
        )

    def same_as_local(self, bag, *inputs):
        """Output and row gradients equal nn.EmbeddingBag's."""
        local = nn.EmbeddingBag(10, 5, mode=bag.mode, _weight=bag.export_weight(bag.table.name, 10),
                                include_last_offset=bag.include_last_offset)
        g = torch.randn(3, 5)
        with braid.torch.context(self.client) as context:
            out = bag(*inputs)
            (out * g).sum().backward()
            context.step()
        expected = local(*inputs)
        (expected * g).sum().backward()
        torch.testing.assert_close(out, expected)
        after = bag.export_weight(bag.table.name, 10)
        torch.testing.assert_close(local.weight.detach() - local.weight.grad, after)

    def test_equals_nn_embedding_bag(self):
        flat, offsets = torch.tensor([1, 2, 1, 4, 9]), torch.tensor([0, 2, 2])
        square = torch.tensor([[1, 2], [3, 1], [0, 0]])
        for mode in ("sum", "mean", "max"):
            self.same_as_local(self.bag(f"t-{mode}", mode), square)
            self.same_as_local(self.bag(f"t-{mode}", mode), flat, offsets)
            self.same_as_local(self.bag(f"t-{mode}", mode), torch.tensor([[3], [3], [5]]))
            last = self.bag(f"t-{mode}", mode, include_last_offset=True)
            self.same_as_local(last, flat, torch.tensor([0, 2, 2, 5]))
        weights = torch.randn(5)
        self.same_as_local(self.bag("t-sum", "sum"), flat, offsets, weights)
        self.same_as_local(self.bag("t-sum", "sum"), square, None, torch.randn(3, 2))
        self.same_as_local(self.bag("t-sum", "sum"), square.int())

    def test_sqrtn_is_the_sum_over_the_root_of_the_number(self):
        bag = self.bag("t-sqrtn", "sqrtn")
        ids, g = torch.tensor([[1, 2], [3, 1], [0, 0]]), torch.randn(3, 5)
        weight = bag.export_weight(bag.table.name, 4).requires_grad_()
        with braid.torch.context(self.client) as context:
            out = bag(ids)
            (out * g).sum().backward()
            context.step()
        expected = weight[ids].sum(1) / 2**0.5
        (expected * g).sum().backward()
        torch.testing.assert_close(out, expected.detach())
        torch.testing.assert_close((weight - weight.grad).detach(), bag.export_weight(bag.table.name, 4))

    def test_gradients_add_up_until_the_step(self):
        bag = self.bag("t-accumulate", "sum")
        before = bag.export_weight(bag.table.name, 3)
        ids = torch.tensor([[0], [1], [0]])
        with braid.torch.context(self.client) as context:
            out = bag(ids)
            out.sum().backward(retain_graph=True)
            (2 * out).sum().backward()  # a second loss through the same forward
            bag(ids[:1]).sum().backward()  # a second lookup
            unused = bag(ids)  # never reaches a loss
            self.assertTrue(unused.requires_grad)
            self.assertTrue((bag.export_weight(bag.table.name, 3) == before).all())
            context.step()
        moved = before - bag.export_weight(bag.table.name, 3)
        torch.testing.assert_close(moved[:, 0], torch.tensor([7.0, 3.0, 0.0]))
        with braid.torch.context(self.client) as context:
            bag(ids).sum().backward()
            context.clear()
            context.step()
        self.assertTrue((before - bag.export_weight(bag.table.name, 3) == moved).all())

    def test_one_output_of_many_is_used(self):
        bags = braid.torch.EmbeddingBagCollection(
            self.client,
            [
                braid.torch.BagConfig("t-ab", 3, ["a", "b"], optimizer=braid.sgd(1.0)),
                braid.torch.BagConfig("t-c", 2, ["c"], mode="mean", optimizer=braid.sgd(1.0)),
            ],
        )
        ids = torch.tensor([[1, 2], [2, 2]])
        before = {t: bags.export_weight(t, 3) for t in bags.tables}
        with braid.torch.context(self.client) as context:
            out = bags({"a": ids, "b": (torch.tensor([2, 0]), torch.tensor([0, 1])), "c": ids})
            self.assertEqual({k: tuple(v.shape) for k, v in out.items()}, {"a": (2, 3), "b": (2, 3), "c": (2, 2)})
            out["a"].sum().backward()
            context.step()
        moved = {t: (before[t] - bags.export_weight(t, 3))[:, 0].tolist() for t in bags.tables}
        for got, expected in ((moved["t-ab"], [0, 1, 3]), (moved["t-c"], [0, 0, 0])):
            torch.testing.assert_close(torch.tensor(got), torch.tensor(expected).float())
        with self.assertRaisesRegex(ValueError, "nobody"):
            bags({"nobody": ids})

    def test_the_context_is_captured_at_forward(self):
        bag = self.bag("t-thread", "sum")
        before = bag.export_weight(bag.table.name, 2)
        with braid.torch.context(self.client) as context:
            loss = bag(torch.tensor([[1]])).sum()
            thread = threading.Thread(target=loss.backward)  # knows of no context
            thread.start()
            thread.join()
            context.step()
        moved = before - bag.export_weight(bag.table.name, 2)
        torch.testing.assert_close(moved[:, 0], torch.tensor([0.0, 1.0]))

    def test_training_needs_a_context(self):
        bag = self.bag("t-none", "sum")
        ids = torch.tensor([[1]])
        with self.assertRaisesRegex(braid.WrongState, "context"):
            bag(ids)
        with torch.no_grad():
            self.assertFalse(bag(ids).requires_grad)
        bag.eval()
        self.assertFalse(bag(ids).requires_grad)
        bag.train()
        with braid.torch.context(self.client):
            loss = bag(ids).sum()
        with self.assertRaisesRegex(braid.WrongState, "closed"):
            loss.backward()
        with self.assertRaisesRegex(ValueError, '"median": sum, mean, sqrtn or max'):
            self.bag("t-median", "median")
        with braid.torch.context(self.client):
            with self.assertRaisesRegex(ValueError, "1D with offsets"):
                bag(torch.tensor([1, 2]))
            with self.assertRaisesRegex(ValueError, "gradient"):
                bag(ids, None, torch.ones(1, 1, requires_grad=True))

    def test_nothing_to_see_for_optimisers_and_state_dicts(self):
        bag = self.bag("t-state", "sum")
        model = nn.Sequential(bag, nn.Linear(5, 1))
        self.assertEqual(len(list(bag.parameters())) + len(bag.state_dict()), 0)
        state = braid.torch.export_state_dict(model, {"t-state": 4})
        self.assertEqual(sorted(state), ["0.weight", "1.bias", "1.weight"])
        local = nn.Sequential(nn.EmbeddingBag(4, 5, mode="sum"), nn.Linear(5, 1))
        local.load_state_dict(state)
        ids = torch.tensor([[0, 3], [2, 2]])
        model.eval()
        torch.testing.assert_close(local(ids), model(ids))
        bag.import_weight("t-state", local[0].weight * 2)
        torch.testing.assert_close(bag.export_weight("t-state", 4), local[0].weight.detach() * 2)

    def test_prefetch_hands_errors_on_and_ends(self):
        bags = make_bags(self.client, "t-prefetch", braid.sgd(1.0))
        ids = torch.zeros(4, adult.COLUMNS, dtype=torch.long)
        with self.assertRaisesRegex(ValueError, "in no table"):
            for _ in braid.torch.prefetching([ids, ids], bags, lambda x: {"x": x}):
                pass
        n = threading.active_count()
        for _, prefetched in braid.torch.prefetching([ids] * 9, bags, adult.features):
            bags.eval()
            self.assertEqual(len(bags(prefetched)), adult.COLUMNS)
            break  # the thread must end all the same
        self.assertEqual(threading.active_count(), n)

    @unittest.skipUnless(ADULT, "no data")
    def test_losses_equal_local_embeddings(self):
        train, _, sizes = adult.load(ADULT)
        for consistency in ("async", "sync"):
            for name, (on_servers, local_optimizer) in OPTIMIZERS.items():
                with braid.torch.connect(COORDINATOR, consistency=consistency) as client:
                    prefix = f"one-{consistency}-{name}"
                    remote, local = twin(make_bags(client, prefix, on_servers), prefix, sizes)
                    self.assertLess(compare(client, remote, local, local_optimizer, train), 1e-5)

    @unittest.skipUnless(ADULT, "no data")
    def test_two_ranks_of_ddp(self):
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(
                run_rank, (2, os.path.join(folder, "meet"), "ddp", results), nprocs=2
            )
        seen = {}
        for _ in range(6):
            rank, name, value = results.get()
            seen[rank, name] = value
        for rank in range(2):
            self.assertLess(seen[rank, "sgd"], 1e-5)
            self.assertLess(seen[rank, "adagrad"], 1e-5)
        self.assertEqual(seen[0, "auc"], seen[1, "auc"])
        self.assertGreaterEqual(seen[0, "auc"], 0.917)
        print("auc", seen[0, "auc"], "largest difference of a loss", max(v for (_, n), v in seen.items() if n != "auc"))


if __name__ == "__main__":
    unittest.main()
