"""Hugging Face has a package that is called ``kernels`` too, and ``transformers`` looks for it by name."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

GENERATE = """
import torch
import kernels
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import is_kernels_available

torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, pad_token_id=0, eos_token_id=None,
)).eval()
tokens = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4, num_beams=2, do_sample=False)
assert tokens.shape == (1, 7), tokens.shape
assert not is_kernels_available()
print(kernels.__file__)
"""


def test_transformers_imports_and_generates_with_our_kernels_package_on_the_path(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", GENERATE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip().splitlines()[-1]) == ROOT / "kernels" / "__init__.py"
