"""The example of Ray Train: a node dies, and the run goes on with fewer workers. Skipped without Ray Train, PyTorch."""

import collections
import json
import threading
import time

import numpy
import pytest
from support import PROGRAM, load_example

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")
pytest.importorskip("ray.train", exc_type=ImportError)
cluster_utils = pytest.importorskip("ray.cluster_utils")

SAMPLES, BATCH_SIZE, EPOCHS, SAVE_EVERY, DEATH = 48, 4, 2, 3, 8


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("FOREBAY_PROGRAM", PROGRAM)
    monkeypatch.setenv("RAY_TRAIN_V2_ENABLED", "1")
    # Only a worker, and not the head, may be on the node that dies.
    made = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    dying = made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    made.wait_for_nodes()
    yield made, dying
    ray.shutdown()
    made.shutdown()


@pytest.fixture
def config_file(tmp_path):
    """Shuffled images whose every pixel is the sample's id."""
    (tmp_path / "data").mkdir()
    for sample in range(SAMPLES):
        image = numpy.full((3, 4, 4), sample, numpy.uint8)
        numpy.savez(tmp_path / "data" / f"{sample:02}.npz", image=image, label=numpy.int64(sample % 5))
    file = tmp_path / "train.toml"
    file.write_text(
        f'[dataset]\nformat = "npz"\npath = "{tmp_path}/data"\n'
        f"[order]\nseed = 11\nepochs = {EPOCHS}\n[batch]\nsize = {BATCH_SIZE}\n"
        '[[stage]]\nname = "unpack"\nconcurrency = 1\noperations = []\n[ring]\nslots = 6\nhold = 4\n'
    )
    return file


def recording(train, classifier, folder, death):
    """The example's function; each worker writes what its model sees, and with two workers it stops at a step."""

    def recorded(config):
        import json
        import time

        import ray.train

        context = ray.train.get_context()
        world, rank = context.get_world_size(), context.get_world_rank()
        forward, steps = classifier.forward, []

        def watched(self, images):
            steps.append(images[:, 0, 0, 0].tolist())
            with open(f"{folder}/{world}-{rank}.jsonl", "a") as file:
                file.write(json.dumps(steps[-1]) + "\n")
            while world == 2 and len(steps) == death:
                time.sleep(0.1)
            return forward(self, images)

        classifier.forward = watched
        try:
            train(config)
        finally:
            classifier.forward = forward

    return recorded


def seen(folder, world, rank):
    file = folder / f"{world}-{rank}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []


def test_run_goes_on_at_the_next_batch_with_fewer_workers(cluster, config_file, tmp_path):
    made, dying = cluster
    example = load_example("train_ray")
    for folder in ("seen", "runs"):
        (tmp_path / folder).mkdir()
    folder = tmp_path / "seen"

    def kill():
        while len(seen(folder, 2, 0)) < DEATH or len(seen(folder, 2, 1)) < DEATH:
            time.sleep(0.1)
        made.remove_node(dying, allow_graceful=False)

    threading.Thread(target=kill, daemon=True).start()
    arguments = ["--workers", "1", "2", "--pixels", "48", "--epochs", str(EPOCHS), "--save-every", str(SAVE_EVERY)]
    train = recording(example.train, example.Classifier, str(folder), DEATH)
    result = example.main([str(config_file), str(tmp_path / "runs"), *arguments], train=train)
    assert result.error is None
    before, after = [seen(folder, 2, rank) for rank in (0, 1)], seen(folder, 1, 0)
    assert [len(steps) for steps in before] == [DEATH, DEATH]
    # The last checkpoint that was complete before the node died.
    steps = (SAMPLES * EPOCHS // BATCH_SIZE - len(after)) // 2
    assert steps in (SAVE_EVERY, 2 * SAVE_EVERY)
    trained = [sample for rank in before for batch in rank[:steps] for sample in batch]
    trained += [sample for batch in after for sample in batch]
    assert collections.Counter(trained) == dict.fromkeys(range(SAMPLES), EPOCHS)
