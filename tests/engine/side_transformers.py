"""Vectors and scores by transformers and torch alone, in a process of its own: what ours are compared with.

    python side_transformers.py ORDERS.json FOUND.json

A vector is the mean of a text's token states, a score what the head of a cross-encoder says, through a sigmoid; both in
32-bit floats.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer


@torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
def main(orders_path: Path, found_path: Path) -> None:
    orders: dict[str, Any] = json.loads(orders_path.read_text())
    tokenizer = AutoTokenizer.from_pretrained(orders["embedding_model"])
    model = AutoModel.from_pretrained(orders["embedding_model"], dtype=torch.float32).eval()
    found: dict[str, Any] = {"vectors": [], "num_tokens": [], "scores": [], "num_pair_tokens": []}
    for text in orders["texts"]:
        inputs = tokenizer(text, return_tensors="pt")
        found["vectors"].append(model(**inputs).last_hidden_state[0].mean(dim=0).tolist())
        found["num_tokens"].append(int(inputs["input_ids"].shape[1]))
    tokenizer = AutoTokenizer.from_pretrained(orders["cross_encoder"])
    head = AutoModelForSequenceClassification.from_pretrained(orders["cross_encoder"], dtype=torch.float32).eval()
    for query, document in orders["pairs"]:
        inputs = tokenizer(query, document, return_tensors="pt")
        found["scores"].append(float(torch.sigmoid(head(**inputs).logits[0, 0])))
        found["num_pair_tokens"].append(int(inputs["input_ids"].shape[1]))
    found_path.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
