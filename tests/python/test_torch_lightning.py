"""The trainers and writers themselves, not stand-ins: Lightning with mixed precision and clipping, TensorBoard, Weights
& Biases without its server.
"""

import json
import struct
import time

import lightning.pytorch as lightning
import pytest
import torch
import wandb
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from wandb.proto.wandb_internal_pb2 import Record

import foam.watch
from foam.torch import FOAM
from models import OPTIONS, bits, network, train


class Regression(lightning.LightningModule):
    """A small network that notes the norms of its gradients before and after clipping, its losses and its type."""

    def __init__(self):
        super().__init__()
        self.model = network()
        self.norms, self.clipped, self.losses, self.types = [], [], [], set()

    def training_step(self, batch, _):
        x, y = batch
        found = self.model(x)
        self.types.add(found.dtype)
        loss = ((found - y) ** 2).mean()
        self.losses.append(loss.item())
        return loss

    def on_before_optimizer_step(self, optimizer):
        # Lightning clips after this hook.
        self.norms.append(self._norm())

    def configure_optimizers(self):
        optimizer = FOAM(self, **OPTIONS)
        optimizer.register_step_post_hook(lambda *_: self.clipped.append(self._norm()))
        return optimizer

    def _norm(self):
        return torch.cat([p.grad.detach().reshape(-1) for p in self.parameters()]).norm().item()


def data():
    x = torch.randn(64, 12, generator=torch.Generator().manual_seed(1))
    return DataLoader(TensorDataset(x, x[:, :3].sin()), batch_size=16)


def trainer(folder, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    logger = options.pop("logger", False)
    return lightning.Trainer(accelerator="cpu", devices=1, default_root_dir=folder, logger=logger, **quiet, **options)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_lightning_clips_and_trains_in_mixed_precision(precision, tmp_path):
    module = Regression()
    options = {"gradient_clip_val": 0.1, "max_epochs": 20, "enable_checkpointing": False}
    trainer(tmp_path, precision=precision, **options).fit(module, data())
    assert len(module.losses) == 80 and module.losses[-1] < 0.5 * module.losses[0]
    assert max(module.norms) > 0.1 and max(module.clipped) <= 0.1 * 1.001
    assert module.types == {torch.bfloat16 if precision == "bf16-mixed" else torch.float32}
    assert all(p.dtype == torch.float32 for p in module.parameters())


def test_lightning_resumes_from_its_own_checkpoint_bit_for_bit(tmp_path):
    options = {"precision": "bf16-mixed", "enable_checkpointing": True}
    whole = Regression()
    trainer(tmp_path, max_epochs=4, **options).fit(whole, data())
    first = Regression()
    running = trainer(tmp_path, max_epochs=2, **options)
    running.fit(first, data())
    running.save_checkpoint(tmp_path / "half.ckpt")
    second = Regression()
    trainer(tmp_path, max_epochs=4, **options).fit(second, data(), ckpt_path=tmp_path / "half.ckpt")
    assert bits(second) == bits(whole) != bits(first)


def test_the_callback_logs_to_lightnings_own_loggers(tmp_path):
    module, loggers = Regression(), [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "tensorboard")]
    callback = foam.watch.lightning_callback(every=3)
    options = {"max_steps": 9, "logger": loggers, "callbacks": [callback], "enable_checkpointing": False}
    trainer(tmp_path, max_epochs=-1, **options).fit(module, data())
    events = EventAccumulator(loggers[1].log_dir)
    events.Reload()
    assert [event.step for event in events.Scalars("foam/evd_rate")] == [3, 6, 9]
    assert "foam/evd_rate" in next((tmp_path / "csv").rglob("metrics.csv")).read_text()


def test_tensorboard_reads_back_what_its_writer_was_given(tmp_path):
    model = network()
    optimizer = FOAM(model, **OPTIONS)
    train(model, optimizer, range(7))
    with SummaryWriter(tmp_path) as writer:
        foam.watch.tensorboard(writer, optimizer)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    expected = foam.watch.scalars(optimizer)
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, value in expected.items():
        (event,) = events.Scalars(name)
        assert event.step == 7 and event.value == pytest.approx(value, rel=1e-6)


def logged(folder):
    """What a run of Weights & Biases wrote to its file: a dict for each log."""
    (path,) = folder.rglob("run-*.wandb")
    data, place, whole = path.read_bytes(), 7, b""
    # LevelDB's log format: blocks of 32 kB; a record is one piece (kind 1) or several, the last of kind 4.
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        if place + 7 + length > len(data):
            return
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                yield {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}


def test_weights_and_biases_writes_what_it_was_given(tmp_path):
    model = network()
    optimizer = FOAM(model, **OPTIONS)
    wandb.init(project="foam", mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True, x_disable_stats=True))
    expected = []
    try:
        for steps, options in ((range(7), {}), (range(7, 9), {"step": 12, "per_factor": True})):
            train(model, optimizer, steps)
            foam.watch.wandb(optimizer, **options)
            expected.append(foam.watch.scalars(optimizer, per_factor="per_factor" in options))
    finally:
        wandb.finish()
    # Its own process may still be writing when `finish` returns.
    until = time.monotonic() + 60
    while len(rows := list(logged(tmp_path))) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    first, second = rows
    assert (first["_step"], second["_step"]) == (0, 12)
    for found, given in zip((first, second), expected):
        assert {name: value for name, value in found.items() if not name.startswith("_")} == given
    with pytest.raises(foam.InvalidArgumentError, match=r"no run .* is active"):
        foam.watch.wandb(optimizer)
