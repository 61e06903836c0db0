"""Model directories: what loads, and how each fault is named."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from engine.errors import ModelError
from engine.model.decoder_config import DecoderConfig
from engine.model.linear import DenseLinear
from engine.model.spec import ModelSpec
from engine.model.weights import DecoderWeights, load_weights
from tests.engine.tiny_models import TinyModel, config_of, sid_of, weights_of, write_model

MODEL = TinyModel((4, 3))


def load(directory: Path) -> DecoderWeights:
    return load_weights(directory, DecoderConfig.load(directory), torch.device("cpu"), torch.float32)


def with_config(directory: Path, model: TinyModel = MODEL, **changes: Any) -> Path:
    write_model(model, directory)
    (directory / "config.json").write_text(json.dumps(config_of(model) | changes))
    return directory


def with_sid(directory: Path, **changes: Any) -> Path:
    write_model(MODEL, directory)
    (directory / "sid.json").write_text(json.dumps(sid_of(MODEL) | changes))
    return directory


def test_the_spec_knows_levels_prompts_and_decoder(tmp_path: Path) -> None:
    spec = ModelSpec.load(write_model(TinyModel((4, 4), shared=True, max_history_items=9), tmp_path))
    assert spec.level_sizes == (4, 4)
    assert [level.token_base for level in spec.levels] == [16, 16]
    assert spec.max_history_items == 9
    assert spec.prompts["framed"].slots == {"hour", "region"}
    assert spec.prompt_tokens(spec.prompts["framed"], 2) == 3 + 2 * (1 + 2 + 2) + 3
    assert spec.decoder.kv_heads == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"surprise": 1}, "surprise"),
        ({"levels": []}, "levels"),
        ({"levels": [{"token_base": 16, "size": 11}]}, "outside the vocabulary"),
        ({"levels": [{"token_base": 16, "size": 0}]}, "levels.0.size"),
        ({"levels": [{"token_base": 16, "size": 4, "sise": 4}]}, "levels.0.sise"),
        ({"levels": [{"token_base": 16, "size": "4"}]}, "levels.0.size"),
        ({"prompts": {}}, "prompts"),
        ({"prompts": {"default": {"prefix": [99]}}}, "prompts.default: token 99"),
        ({"prompts": {"default": {"before_item": ["hour"]}}}, "prompts.default.before_item"),
        ({"slots": {"hour": {"noon": 99}}}, "slots.hour: token 99"),
        ({"history_drop": 0}, "history_drop"),
        ({"history_drop": 13}, "history_drop is larger than max_history_items"),
        ({"max_history_items": 3000, "history_drop": 1}, "takes"),
        ({"id": ""}, "id"),
    ],
)
def test_a_fault_in_sid_json_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=r"sid\.json") as caught:
        ModelSpec.load(with_sid(tmp_path, **changes))
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mistral"}, "mistral"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding_window"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, "linear"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 3}, "multiple"),
        ({"head_dim": 7}, "head_dim"),
        ({"rope_theta": "big"}, "rope_theta"),
        ({"rope_theta": float("inf")}, "rope_theta"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"rope_parameters": [1]}, "rope parameters"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 5.0}}}, "rope parameters"),
        ({"layer_types": 5}, "layer_types"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": "2"}, "max_window_layers"),
    ],
)
def test_a_decoder_that_would_be_computed_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ModelError, match=r"config\.json") as caught:
        ModelSpec.load(with_config(tmp_path, **changes))
    assert named in str(caught.value)


@pytest.mark.parametrize("from_layer", [MODEL.layers, None])
def test_a_sliding_window_that_no_layer_uses_is_no_obstacle(tmp_path: Path, from_layer: int | None) -> None:
    unused: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": from_layer}
    assert ModelSpec.load(with_config(tmp_path, **unused)).decoder.layers == MODEL.layers


@pytest.mark.parametrize("text", ["{", "[]", "\xff", "[" * 100_000])
@pytest.mark.parametrize("file", ["sid.json", "config.json"])
def test_a_file_that_is_no_json_object_is_named(tmp_path: Path, file: str, text: str) -> None:
    write_model(MODEL, tmp_path)
    (tmp_path / file).write_text(text, encoding="latin-1")
    with pytest.raises(ModelError, match=file.replace(".", r"\.")):
        ModelSpec.load(tmp_path)


def test_several_files_load_as_one(tmp_path: Path) -> None:
    whole = load(write_model(MODEL, tmp_path / "one"))
    weights = weights_of(MODEL)
    parts = write_model(MODEL, tmp_path / "parts")
    (parts / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in shards.items():
        save_file({name: weights[name] for name in held}, str(parts / file))
    index = {"weight_map": {name: file for file, held in shards.items() for name in held}}
    (parts / "model.safetensors.index.json").write_text(json.dumps(index))
    split = load(parts)
    ours, theirs = split.layers[1].qkv, whole.layers[1].qkv
    assert isinstance(ours, DenseLinear)
    assert isinstance(theirs, DenseLinear)
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(split.head, whole.head)
    (parts / "b.safetensors").unlink()
    with pytest.raises(ModelError, match=r"b\.safetensors"):
        load(parts)


def test_half_precision_checkpoints_are_widened(tmp_path: Path) -> None:
    half = {name: tensor.astype(np.float16) for name, tensor in weights_of(MODEL).items()}
    directory = write_model(MODEL, tmp_path)
    save_file(half, str(directory / "model.safetensors"))
    weights = load(directory)
    assert weights.norm.dtype == torch.float32
    np.testing.assert_array_equal(weights.norm, half["model.norm.weight"].astype(np.float32))


def test_a_tied_head_is_the_embedding_even_where_the_file_repeats_it(tmp_path: Path) -> None:
    model = TinyModel((4, 3), tied=True)
    tensors = weights_of(model)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    weights = load(write_model(model, tmp_path, tensors))
    assert weights.head is weights.embedding


@pytest.mark.parametrize(
    ("name", "shape", "named"),
    [
        ("model.layers.1.mlp.up_proj.weight", None, "up_proj"),
        ("lm_head.weight", None, "lm_head.weight"),
        ("model.layers.0.self_attn.q_norm.weight", (9,), "q_norm.weight has shape"),
        ("model.layers.0.self_attn.q_proj.bias", (32,), "does not use"),
        ("model.layers.2.input_layernorm.weight", (24,), "does not use"),
    ],
)
def test_tensors_must_be_those_of_the_architecture(
    tmp_path: Path, name: str, shape: tuple[int, ...] | None, named: str
) -> None:
    tensors = weights_of(MODEL)
    if shape is None:
        del tensors[name]
    else:
        tensors[name] = np.zeros(shape, dtype=np.float32)
    with pytest.raises(ModelError, match=named):
        load(write_model(MODEL, tmp_path, tensors))


def test_a_cut_weights_file_is_named(tmp_path: Path) -> None:
    path = write_model(MODEL, tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        load(tmp_path)
