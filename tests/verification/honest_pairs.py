"""Train small models in float32 and again in another format, honestly or with something perturbed, and compare.

``python -m tests.verification.honest_pairs [--pairs 200] [--perturbed 100] [--seed 0]`` prints a table: what ``diff``
says of honest pairs, by format, and of pairs of one format of which one was perturbed. The exit status is 1 where it
says of an honest pair that a module changed, or takes a perturbation for rounding. One that changed no figure of either
run by a bit, as that of a weight behind which everything is cut off at zero, cannot be found and is "same".
``test_honest_pairs.py`` tries a few.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import nn

from overflow_analyzer.diff import diff_traces
from overflow_analyzer.render.diff.sentences import answer
from overflow_analyzer.trace.opening import open_trace
from overflow_recorder import TraceRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overflow_analyzer.diff import TraceDiff

Perturbation = Literal["weight", "activation", "update"]
PERTURBATIONS: Final[tuple[Perturbation, ...]] = ("weight", "activation", "update")

FORMATS: Final = ("bfloat16", "float16", "bfloat16 autocast", "float16 autocast")
_ACTIVATIONS: Final = (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU)
_OPTIMIZERS: Final[dict[str, Callable[[Any], torch.optim.Optimizer]]] = {
    "SGD": lambda weights: torch.optim.SGD(weights, lr=0.01),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9),
    "Adam": lambda weights: torch.optim.Adam(weights, lr=0.001, eps=1e-4),  # 1e-8 is 0 in float16
}


class Attention(nn.Module):
    """One head over a short sequence, residual, in plain operations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.into = nn.Linear(width, 3 * width)
        self.scores = nn.Softmax(-1)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.into(self.norm(x)).chunk(3, -1)
        attended: torch.Tensor = self.scores(query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5) @ value
        added: torch.Tensor = self.out(attended)
        return x + added


@contextlib.contextmanager
def _perturbed(model: nn.Module, how: Perturbation | None, draw: random.Random) -> Iterator[None]:
    """Change one element of a weight by a hundredth, or for one forward the sign of one activation."""
    layer = draw.choice([one for one in model.modules() if isinstance(one, nn.Linear)])
    at = draw.randrange(layer.weight.numel())
    if how == "weight":
        with torch.no_grad():
            layer.weight.view(-1)[at] *= 1.01

    def flip(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        sign = torch.ones(output.numel())
        sign[at % output.numel()] = -1
        return output * sign.view_as(output).to(output.dtype)

    handle = layer.register_forward_hook(flip) if how == "activation" else None
    try:
        yield
    finally:
        if handle is not None:
            handle.remove()


@dataclass(frozen=True)
class Training:
    """A small training, all of it drawn from one number."""

    seed: int

    @property
    def batches(self) -> int:
        """How many batches it goes on for."""
        return int(3 * (50 / 3) ** random.Random(f"batches {self.seed}").random() + 0.5)

    def model(self) -> nn.Module:
        """Make the model, its weights seeded."""
        draw = random.Random(f"model {self.seed}")
        torch.manual_seed(self.seed)
        width, kind = draw.choice([4, 8, 16, 32]), draw.choice(["plain", "norm", "attention"])
        activation = draw.choice(_ACTIVATIONS)
        layers: list[nn.Module] = [nn.Linear(8, width)]
        for _ in range(draw.randint(1, 5)):
            if kind == "attention":
                layers.append(Attention(width))
            layers += [nn.LayerNorm(width)] if kind == "norm" else []
            layers += [nn.Linear(width, width), activation()]
        return nn.Sequential(*layers, nn.Linear(width, draw.choice([1, 2, 8])))

    def run(self, path: Path, precision: str = "float32", perturbed: Perturbation | None = None) -> None:
        """Train and record.

        Args:
            path: Of the trace.
            precision: A dtype for everything, or one followed by "autocast" for the forward alone.
            perturbed: What is done wrong, in one batch.
        """
        draw = random.Random(f"run {self.seed}")
        dtype = getattr(torch, precision.split(maxsplit=1)[0])
        own = torch.float32 if "autocast" in precision else dtype
        model = self.model().to(own)
        optimizer = _OPTIMIZERS[draw.choice(list(_OPTIMIZERS))](model.parameters())
        size, places = draw.choice([1, 4, 16]), draw.choice([(), (5,)])
        places = (5,) if any(isinstance(one, Attention) for one in model.modules()) else places
        width = [one for one in model.modules() if isinstance(one, nn.Linear)][-1].out_features
        data = torch.Generator().manual_seed(self.seed)
        wrong_batch = draw.randrange(self.batches - 1)
        with TraceRecorder(model, path, every_n_batches=1) as recorder:
            for batch in range(self.batches):
                inputs, targets = (torch.randn(size, *places, n, generator=data) for n in (8, width))
                wrong = perturbed if batch == wrong_batch else None
                with torch.autocast("cpu", dtype, enabled="autocast" in precision), _perturbed(model, wrong, draw):
                    output = model(inputs.to(own))
                loss = nn.functional.mse_loss(output.float(), targets)
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                if wrong != "update":
                    optimizer.step()
                optimizer.zero_grad()
                recorder.record("loss", loss=loss)


def compare_honest(seed: int, folder: Path) -> tuple[str, TraceDiff]:
    """Train in float32 and in another format, and return which and the comparison."""
    precision = FORMATS[seed % len(FORMATS)]
    Training(seed).run(folder / "a", "float32")
    Training(seed).run(folder / "b", precision)
    return precision, diff_traces(open_trace(folder / "a"), open_trace(folder / "b"))


def compare_perturbed(seed: int, folder: Path) -> tuple[Perturbation, TraceDiff]:
    """Train twice in float32, once with something perturbed, and return what and the comparison."""
    perturbation = PERTURBATIONS[seed % len(PERTURBATIONS)]
    Training(seed).run(folder / "a")
    Training(seed).run(folder / "b", perturbed=perturbation)
    return perturbation, diff_traces(open_trace(folder / "a"), open_trace(folder / "b"))


def verdict(diff: TraceDiff) -> str:
    """Return what a comparison says in a word: the kind of the first difference, or whether all figures are equal."""
    if diff.first_divergence is not None:
        return diff.first_divergence.kind
    return "same but for rounding" if diff.compared.tolerated else "same"


def main() -> int:
    """Compare and print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--perturbed", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found: collections.Counter[tuple[str, str]] = collections.Counter()
    wrong = 0
    for title, compared, count, refused in (
        ("honest", compare_honest, options.pairs, "module"),
        ("perturbed", compare_perturbed, options.perturbed, "same but for rounding"),
    ):
        for seed in range(options.seed, options.seed + count):
            with tempfile.TemporaryDirectory() as folder:
                what, diff = compared(seed, Path(folder))
            found[f"{title} {what}", verdict(diff)] += 1
            if verdict(diff) == refused:
                wrong += 1
                print(f"seed {seed}, {title} {what}: {' '.join(answer(diff))}")
    for row in dict.fromkeys(row for row, _ in found):
        print(f"{row:28}", ", ".join(f"{said} {count}" for (one, said), count in sorted(found.items()) if one == row))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
