"""Libraries that train models, set up for a card as described in docs/trainers.md."""

from __future__ import annotations

import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.torch_backend.processes import run

PAGE = Path(__file__).parents[3] / "docs" / "trainers.md"
DATA = """
warnings.simplefilter("ignore")
from torch.utils.data import DataLoader, TensorDataset
batches = DataLoader(TensorDataset(torch.ones(4, 8), torch.ones(4, 1)), 2)
"""


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@needs("accelerate")
def test_accelerate():
    code = """
    from accelerate import Accelerator
    accelerator = Accelerator()
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    losses = []
    for x, y in batches:
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    print(loss.device, losses[1] < losses[0])
    """
    code = DATA + textwrap.dedent(code)
    assert run(code, ACCELERATE_TORCH_DEVICE="spyre").split() == ["spyre:0", "True"]


@needs("accelerate", "transformers")
def test_trainer(tmp_path):
    code = f"""
    warnings.simplefilter("ignore")
    import transformers
    from qa.models import configurations
    arguments = transformers.TrainingArguments(
        {str(tmp_path)!r}, max_steps=1, report_to=[], save_strategy="no", disable_tqdm=True
    )
    data = [{{"input_ids": torch.arange(8), "labels": torch.arange(8)}} for _ in range(8)]
    trainer = transformers.Trainer(configurations.llama(), arguments, train_dataset=data)
    loss = trainer.train().training_loss
    print(next(trainer.model.parameters()).device, 0 < loss < 10)
    """
    assert "spyre:0 True" in run(code, ACCELERATE_TORCH_DEVICE="spyre").splitlines()


@needs("accelerate", "transformers")
def test_device_map(tmp_path):
    code = f"""
    warnings.simplefilter("ignore")
    import transformers
    from qa.models import configurations
    configurations.llama().save_pretrained({str(tmp_path)!r})
    read = transformers.LlamaForCausalLM.from_pretrained
    model = read({str(tmp_path)!r}, device_map="spyre", dtype=torch.float16)
    print({{str(p.device) for p in model.parameters()}})
    print(model(torch.arange(4, device="spyre")[None]).logits.device)
    """
    assert {"{'spyre:0'}", "spyre:0"} <= {*run(code).splitlines()}  # among bars of progress


@needs("lightning")
def test_lightning():
    shown = PAGE.read_text().split("```text\n")[1].split("```")[0]
    options = "logger=False, enable_checkpointing=False, enable_progress_bar=False, max_epochs=1)"
    code = """
    import lightning
    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
        def training_step(self, batch, index):
            x, y = batch
            print("on", x.device, self.device)
            return (self.layer(x) - y).square().mean()
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)
    """
    shown = shown.replace("strategy=strategy)", f"strategy=strategy, {options}")
    code = DATA + textwrap.dedent(code) + shown + "trainer.fit(Model(), batches)\n"
    assert run(code).count("on spyre:0 spyre:0") == 2
