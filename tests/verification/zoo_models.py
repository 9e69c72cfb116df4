"""Tiny models of every architecture that transformers has, from configurations alone: random weights, random inputs."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Final

import torch
from transformers import AutoModel, PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ARCHITECTURES", "CannotBuildError", "build"]

ARCHITECTURES: Final = tuple(sorted(MODEL_MAPPING_NAMES))
_MOST_PARAMETERS: Final = 8_000_000
_BATCH, _LENGTH, _PIXELS = 2, 8, 32

# Whatever an architecture calls its sizes: one of these names, nearly always.
_NAMES_OF_SIZES: Final = {
    32: """hidden_size d_model n_embd dim embed_dim n_embed hidden_dim encoder_hidden_size encoder_embed_dim emb_dim
        decoder_embed_dim projection_dim decoder_hidden_size embedding_size entity_emb_size word_embed_proj_dim d_embed
        output_hidden_size image_size img_size input_size""",
    48: """intermediate_size ffn_dim d_ff d_inner n_inner encoder_ffn_dim feed_forward_hidden_size decoder_ffn_dim
        dim_feedforward moe_intermediate_size decoder_intermediate_size expert_ffn_hidden_size
        shared_expert_intermediate_size encoder_intermediate_size""",
    2: """num_hidden_layers n_layer num_layers n_layers encoder_layers decoder_layers num_decoder_layers layers depth
        num_encoder_layers decoder_num_hidden_layers encoder_num_hidden_layers predictor_num_hidden_layers num_blocks
        num_conv_layers num_key_value_heads num_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads
        num_experts_per_tok experts_per_token moe_top_k top_k_experts""",
    4: """num_attention_heads n_head num_heads n_heads encoder_attention_heads heads decoder_attention_heads
        decoder_num_attention_heads encoder_num_attention_heads num_experts num_local_experts n_routed_experts
        moe_num_experts""",
    8: """head_dim d_kv attention_head_size kv_channels d_head qk_rope_head_dim v_head_dim qk_nope_head_dim qk_head_dim
        kv_lora_rank q_lora_rank state_size mamba_d_state patch_size""",
    5: "num_queries query_length num_query_tokens",
    64: """max_position_embeddings n_positions n_ctx max_source_positions max_seq_len max_target_positions
        max_2d_position_embeddings max_sequence_length""",
    99: """vocab_size n_vocab text_vocab_size decoder_vocab_size src_vocab_size tgt_vocab_size entity_vocab_size
        vocab_size_per_layer_input""",
}
_SIZES: Final = {name: size for size, names in _NAMES_OF_SIZES.items() for name in names.split()}
_VOCABULARY: Final = _SIZES["vocab_size"]
_TOKENS: Final = (
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "decoder_start_token_id",
    "sep_token_id",
    "cls_token_id",
)


class CannotBuildError(Exception):
    """The architecture needs more than a smaller configuration and inputs by their names."""


def build(model_type: str) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Make a tiny model, in evaluation mode, and keyword inputs that its forward takes.

    Args:
        model_type: One of ``ARCHITECTURES``.

    Raises:
        CannotBuildError: It could not be made, or is not tiny.
    """
    try:
        config = _small(CONFIG_MAPPING[model_type])
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in AutoModel.from_config(config).parameters())
    except Exception as error:  # each architecture has reasons of its own
        raise CannotBuildError(_in_a_line(error)) from error
    if size > _MOST_PARAMETERS:
        raise CannotBuildError(f"{size:,} parameters even so")
    torch.manual_seed(0)
    try:
        model = AutoModel.from_config(config, attn_implementation="eager").eval()
        return model, _inputs(model, config)
    except Exception as error:
        raise CannotBuildError(_in_a_line(error)) from error


def _in_a_line(error: Exception) -> str:
    return (
        str(error) if isinstance(error, CannotBuildError) else f"{type(error).__name__}: {error}".splitlines()[0][:120]
    )


def _small(config_class: type[PreTrainedConfig]) -> PreTrainedConfig:
    return config_class(**_overrides(config_class()))


def _overrides(config: PreTrainedConfig) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for name, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            overrides[name] = _overrides(value)
        elif name in _SIZES and isinstance(value, int) and not isinstance(value, bool):
            overrides[name] = min(value, _SIZES[name])
        elif name == "image_size" and isinstance(value, (list, tuple)):
            overrides[name] = [_PIXELS] * len(value)
        elif name in _TOKENS and isinstance(value, int):
            overrides[name] = min(value, 1 + _TOKENS.index(name))
        elif name == "layer_types" and isinstance(value, list):
            overrides[name] = value[:2]
    return overrides


def _inputs(model: Any, config: PreTrainedConfig) -> dict[str, Any]:
    torch.manual_seed(1)
    names = inspect.signature(model.forward).parameters
    made = {name: make(config) for name, make in _MAKERS.items() if name in names}
    if "input_ids" not in made:
        made.pop("attention_mask", None)
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    required = [name for name, one in names.items() if one.default is one.empty and one.kind is positional]
    missing = [name for name in required if name not in made]
    if missing:
        raise CannotBuildError(f"nobody knows what {missing[0]} should be")
    return made


def _ids(_: PreTrainedConfig) -> torch.Tensor:
    return torch.randint(10, _VOCABULARY - 10, (_BATCH, _LENGTH))


def _mask(_: PreTrainedConfig) -> torch.Tensor:
    mask = torch.ones(_BATCH, _LENGTH, dtype=torch.long)
    mask[1, -2:] = 0
    return mask


def _boxes(_: PreTrainedConfig) -> torch.Tensor:
    return torch.ones(_BATCH, _LENGTH, 4, dtype=torch.long)


def _waveform(_: PreTrainedConfig) -> torch.Tensor:
    return torch.randn(_BATCH, 2000)


def _pixels(config: PreTrainedConfig) -> torch.Tensor:
    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", _PIXELS)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(_BATCH, getattr(vision, "num_channels", 3), height, width)


def _features(config: PreTrainedConfig) -> torch.Tensor:
    audio = getattr(config, "audio_config", config)
    bins = getattr(audio, "num_mel_bins", None) or getattr(audio, "feature_size", None) or 80
    return torch.randn(_BATCH, bins, 2 * getattr(audio, "max_source_positions", 32))


def _series(config: PreTrainedConfig) -> torch.Tensor:
    return torch.randn(_BATCH, getattr(config, "context_length", 32), getattr(config, "num_input_channels", 1))


_MAKERS: Final[dict[str, Callable[[PreTrainedConfig], torch.Tensor]]] = {
    "input_ids": _ids,
    "attention_mask": _mask,
    "decoder_input_ids": _ids,
    "pixel_values": _pixels,
    "input_features": _features,
    "input_values": _waveform,
    "past_values": _series,
    "bbox": _boxes,
}
