"""Costs of images in vision models: tokens, the encoder's weights, memory of encoding. Pure.

Sources: LLaVA-1.5 (arXiv 2310.03744), CLIP's ViT (arXiv 2103.00020) as `transformers` runs it.
"""

from dataclasses import dataclass

_CHANNELS = 3
_SOFTMAX_BYTES = 4  # scores are normalised in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """A vision transformer and the two-layer projector into a decoder of `output_size` values.

    `has_class_token`: one more place in front of the patches; `keeps_class_token`: it is part of
    the output.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    output_size: int
    has_class_token: bool = True
    keeps_class_token: bool = False

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def places(self) -> int:
        """Places inside the encoder."""
        return self.patches + self.has_class_token

    @property
    def tokens_per_image(self) -> int:
        """Places that an image takes in the context."""
        return self.patches + (self.has_class_token and self.keeps_class_token)

    @property
    def num_parameters(self) -> int:
        """Weights of encoder and projector."""
        hidden, inner = self.hidden_size, self.intermediate_size
        attention = 4 * (hidden * hidden + hidden)
        mlp = hidden * inner + inner + inner * hidden + hidden
        layer = attention + mlp + 4 * hidden  # two norms with bias
        front = _CHANNELS * self.patch_size**2 * hidden + self.places * hidden + hidden
        projector = hidden * self.output_size + self.output_size
        projector += self.output_size * self.output_size + self.output_size
        return self.num_layers * layer + front + 4 * hidden + projector

    def activation_bytes(self, images: int, value_bytes: int) -> int:
        """Bytes held while `images` images are encoded together.

        Attention keeps the scores of one layer, and their softmax in float32. Features come from an
        inner layer, so the output of each layer is kept to the end.
        """
        places, hidden = self.places, self.hidden_size
        scores = self.num_heads * places * places * (value_bytes + _SOFTMAX_BYTES)
        inner = places * self.intermediate_size * value_bytes * 2
        kept = (self.num_layers + 1) * places * hidden * value_bytes
        qkv = 3 * places * hidden * value_bytes
        return images * (scores + inner + kept + qkv)
