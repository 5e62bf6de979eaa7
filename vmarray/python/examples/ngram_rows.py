"""A table of n-grams next to a small model in PyTorch: the model predicts the next byte of a text, and a table in files
gives it the frequencies of the bytes that followed the last three bytes elsewhere.

Run it on a machine with an NVIDIA GPU and PyTorch: ``python ngram_rows.py [--steps 300] [--rows 65536]``. It takes less
than a minute. The table is in shards of safetensors, as language models store theirs, and may be larger than RAM.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np
import torch

import vmarray as vm

BYTES, BATCH = 256, 4096


def text_of(length: int, seed: int) -> np.ndarray:
    """A text in which a byte depends on the three bytes before it, with some noise."""
    rng = np.random.default_rng(seed)
    noise, text = rng.integers(0, 29, length), np.zeros(length, "u1")
    is_noise = rng.random(length) < 0.3
    for at in range(3, length):
        a, b, c = map(int, text[at - 3 : at])
        text[at] = noise[at] if is_noise[at] else (a * 31 + b * 17 + c * 7 + 3) % 29
    return text


def hashes(text: np.ndarray, rows: int) -> np.ndarray:
    """The row of the three bytes before each byte from the fourth on."""
    a, b, c = (text[start : len(text) - 3 + start].astype("u8") for start in range(3))
    key = (a << np.uint64(16) | b << np.uint64(8) | c) * np.uint64(0x9E3779B97F4A7C15)
    return (key >> np.uint64(20)) % np.uint64(rows)


def write_table(folder: Path, text: np.ndarray, rows: int, shards: int) -> None:
    """Counts n-grams, and writes the logarithms of frequencies as shards of safetensors."""
    counts = np.full((rows, BYTES), 0.05, "f4")
    np.add.at(counts, (hashes(text, rows).astype("i8"), text[3:].astype("i8")), 1)
    table = np.log(counts / counts.sum(axis=1, keepdims=True)).astype("f2")
    for number, part in enumerate(np.array_split(table, shards)):
        places = {"dtype": "F16", "shape": part.shape, "data_offsets": [0, part.nbytes]}
        header = json.dumps({f"ngrams.{number}.weight": places}).encode()
        data = len(header).to_bytes(8, "little") + header + part.tobytes()
        (folder / f"table-{number}.safetensors").write_bytes(data)


class Model(torch.nn.Module):
    """Logits of the last byte, and a weighted row of the table."""

    def __init__(self) -> None:
        super().__init__()
        self.last = torch.nn.Sequential(torch.nn.Embedding(BYTES, 64), torch.nn.ReLU(), torch.nn.Linear(64, BYTES))
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, last: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self.last(last) + self.weight * rows


def train(table: vm.RowTable | None, text: np.ndarray, rows: int, steps: int) -> float:
    """Trains a model, with or without the table. Returns the mean loss of the last steps."""
    torch.manual_seed(1)
    model = Model().cuda()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    ids = torch.from_numpy(hashes(text, rows).astype("i8")).cuda()
    last, target = (torch.from_numpy(text[start:][: len(text) - 3].astype("i8")).cuda() for start in (2, 3))
    found, losses = torch.zeros(BATCH, BYTES, device="cuda"), []
    batches = [torch.randint(len(ids), (BATCH,), device="cuda") for _ in range(steps)]
    for step, batch in enumerate(batches):
        if table is not None:
            # The rows are converted to float32. The next step's rows are read ahead meanwhile.
            table.gather_into(found, ids[batch])
            table.prefetch(ids[batches[min(step + 1, steps - 1)]])
        loss = torch.nn.functional.cross_entropy(model(last[batch], found), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return float(torch.stack(losses[-20:]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rows", type=int, default=65536)
    parser.add_argument("--home", default="files", choices=["files", "ram", "gpu"])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("skipped: there is no NVIDIA GPU")
        return
    seen, unseen = text_of(1_000_000, 1), text_of(200_000, 2)
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder), seen, given.rows, 3)
        files, name = f"{folder}/table-*.safetensors", "ngrams.*.weight"
        alone = train(None, unseen, given.rows, given.steps)
        with vm.RowTable.open(files, name, device="cuda:0", home=given.home) as table:
            helped = train(table, unseen, given.rows, given.steps)
            torch.cuda.synchronize()
            table.check()
    print(f"loss without the table {alone:.3f}, with it {helped:.3f}")
    assert helped < alone - 0.2, "the table helps"


if __name__ == "__main__":
    main()
