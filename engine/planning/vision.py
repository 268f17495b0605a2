"""Costs of images in vision models: tokens, the encoder's weights, memory of encoding. Pure.

Sources: LLaVA-1.5 (arXiv 2310.03744), CLIP (2103.00020), SigLIP (2303.15343), Gemma 3 (2503.19786),
Idefics3 (2408.12637), Qwen2-VL (2409.12191) and Qwen2.5-VL (2502.13923), as `transformers` 5 runs
them; `tests/planning/test_configs.py` compares.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.files.fields import MAX_FEW, Fields

_CHANNELS = 3
_SOFTMAX_BYTES = 4  # scores are normalised in float32
USUAL_IMAGE = (1024, 1024)  # pixels, where an encoder accepts any size


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """A vision transformer with the projector into a decoder.

    `image_size`: side of the square that images are scaled to, in pixels; None: any size.
    `extra_places` (a class token) stand before the patches. `merged` patches become one token,
    rounded down as in a square; `extra_tokens` are kept beside them. `fixed_tokens` overrides both.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    num_parameters: int
    image_size: int | None
    extra_places: int = 0
    extra_tokens: int = 0
    merged: int = 1
    fixed_tokens: int | None = None

    def patches(self, pixels: tuple[int, int] = USUAL_IMAGE) -> int:
        """Patches of an image of this width and height."""
        if self.image_size is not None:
            return (self.image_size // self.patch_size) ** 2
        side = self.patch_size * math.isqrt(self.merged)  # whole groups of merged patches
        return math.prod(max(1, round(each / side)) for each in pixels) * self.merged

    def places(self, pixels: tuple[int, int] = USUAL_IMAGE) -> int:
        """Places of an image inside the encoder."""
        return self.patches(pixels) + self.extra_places

    def tokens(self, pixels: tuple[int, int] = USUAL_IMAGE) -> int:
        """Places that an image takes in the context."""
        if self.fixed_tokens is not None:
            return self.fixed_tokens
        return self.patches(pixels) // self.merged + self.extra_tokens

    def activation_bytes(
        self, images: int, value_bytes: int, pixels: tuple[int, int] = USUAL_IMAGE
    ) -> int:
        """Bytes held while `images` images are encoded together.

        Attention keeps the scores of one layer, and their softmax in float32. Features come from an
        inner layer, so the output of each layer is kept to the end.
        """
        places, hidden = self.places(pixels), self.hidden_size
        scores = self.num_heads * places * places * (value_bytes + _SOFTMAX_BYTES)
        inner = places * self.intermediate_size * value_bytes * 2
        kept = (self.num_layers + 1) * places * hidden * value_bytes
        qkv = 3 * places * hidden * value_bytes
        return images * (scores + inner + kept + qkv)


def read_vision(file: Fields, vision: Fields, output_size: int) -> VisionShape:
    """Read the vision part of a config; `output_size` is the decoder's hidden size.

    Raises:
        ModelFileError: names the field, its value and the allowed values.
    """
    name = vision.word("model_type", file.word("model_type", ""))
    if name not in _TOWERS:
        raise vision.wrong("model_type", name, " or ".join(_TOWERS))
    return _TOWERS[name](file, vision, output_size)


def _square(vision: Fields, *, image_size: int, heads: int) -> tuple[int, int, int, int, int, int]:
    """Hidden and inner size, layers, heads, image and patch size of an encoder of squares."""
    image, patch = vision.size("image_size", image_size), vision.size("patch_size")
    if patch > image:
        raise vision.wrong("patch_size", patch, f"at most image_size={image}")
    return (
        vision.size("hidden_size"),
        vision.size("intermediate_size"),
        vision.size("num_hidden_layers", most=MAX_FEW),
        vision.size("num_attention_heads", heads, most=MAX_FEW),
        image,
        patch,
    )


def _encoder_values(hidden: int, inner: int, layers: int) -> int:
    """Weights of layers of attention and a plain MLP, all with bias, two norms with bias each."""
    attention = 4 * (hidden * hidden + hidden)
    mlp = hidden * inner + inner + inner * hidden + hidden
    return layers * (attention + mlp + 4 * hidden)


def _clip(file: Fields, vision: Fields, output_size: int) -> VisionShape:
    hidden, inner, layers, heads, image, patch = _square(vision, image_size=224, heads=12)
    places = (image // patch) ** 2 + 1
    front = _CHANNELS * patch**2 * hidden + hidden + places * hidden
    values = front + _encoder_values(hidden, inner, layers) + 4 * hidden  # norms at both ends
    return VisionShape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        image_size=image,
        patch_size=patch,
        num_parameters=values + _llava_projector(file, hidden, output_size),
        extra_places=1,
        extra_tokens=int(_keeps_all(file)),
    )


def _keeps_all(file: Fields) -> bool:
    kind = file.one_of("vision_feature_select_strategy", ("default", "full"), default="default")
    return kind == "full"


def _llava_projector(file: Fields, hidden: int, output_size: int) -> int:
    bias = 2 * output_size if file.flag("multimodal_projector_bias", default=True) else 0
    return hidden * output_size + output_size * output_size + bias


def _siglip(file: Fields, vision: Fields, output_size: int) -> VisionShape:
    hidden, inner, layers, heads, image, patch = _square(vision, image_size=224, heads=12)
    patches = (image // patch) ** 2
    front = _CHANNELS * patch**2 * hidden + hidden + patches * hidden
    values = front + _encoder_values(hidden, inner, layers) + 2 * hidden
    if vision.flag("vision_use_head", default=True):  # a probe, attention, a norm and an MLP
        values += hidden + _encoder_values(hidden, inner, 1) - 2 * hidden
    pooled = None
    if file.word("model_type", "") == "gemma3":
        pooled = file.size("mm_tokens_per_image", 256)
        projector = hidden * output_size + hidden
    else:
        projector = _llava_projector(file, hidden, output_size)
    return VisionShape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        image_size=image,
        patch_size=patch,
        num_parameters=values + projector,
        fixed_tokens=pooled,
    )


def _idefics3(file: Fields, vision: Fields, output_size: int) -> VisionShape:
    """Tokens are those of one tile; a large image becomes several."""
    hidden, inner, layers, heads, image, patch = _square(vision, image_size=224, heads=12)
    scale = file.size("scale_factor", 2) ** 2
    patches = (image // patch) ** 2
    front = _CHANNELS * patch**2 * hidden + hidden + patches * hidden
    values = front + _encoder_values(hidden, inner, layers) + 2 * hidden
    return VisionShape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=heads,
        image_size=image,
        patch_size=patch,
        num_parameters=values + scale * hidden * output_size,
        merged=scale,
    )


def _qwen2_vl(_file: Fields, vision: Fields, output_size: int) -> VisionShape:
    hidden = vision.size("embed_dim", 1280)
    inner = hidden * vision.size("mlp_ratio", 4)
    layer = 4 * (hidden * hidden + hidden) + 2 * hidden * inner + inner + hidden + 4 * hidden
    return _qwen(
        vision, (hidden, inner, layer), 2 * hidden, vision.size("hidden_size", output_size)
    )


def _qwen2_5_vl(_file: Fields, vision: Fields, output_size: int) -> VisionShape:
    hidden, inner = vision.size("hidden_size"), vision.size("intermediate_size", 3420)
    mlp = 3 * hidden * inner + 2 * inner + hidden
    layer = 4 * (hidden * hidden + hidden) + mlp + 2 * hidden
    return _qwen(
        vision, (hidden, inner, layer), hidden, vision.size("out_hidden_size", output_size)
    )


def _qwen(vision: Fields, sizes: tuple[int, int, int], norm: int, output_size: int) -> VisionShape:
    """`sizes`: hidden and inner size, and the weights of a layer."""
    hidden, inner, layer = sizes
    patch, merge = vision.size("patch_size", 14), vision.size("spatial_merge_size", 2)
    layers = vision.size("depth", 32, most=MAX_FEW)
    wide = hidden * merge**2
    merger = norm + wide * wide + wide + wide * output_size + output_size
    front = _CHANNELS * vision.size("temporal_patch_size", 2) * patch**2 * hidden
    return VisionShape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_heads=vision.size("num_heads", 16, most=MAX_FEW),
        image_size=None,
        patch_size=patch,
        num_parameters=front + layers * layer + merger,
        merged=merge**2,
    )


_TOWERS: Mapping[str, Callable[[Fields, Fields, int], VisionShape]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
    "idefics3_vision": _idefics3,
    "idefics3": _idefics3,
    "smolvlm_vision": _idefics3,
    "smolvlm": _idefics3,
    "qwen2_vl": _qwen2_vl,
    "qwen2_vl_vision": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_5_vl_vision": _qwen2_5_vl,
}
