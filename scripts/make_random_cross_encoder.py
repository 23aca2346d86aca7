"""Make a cross-encoder with random weights: a BERT with a classification head of one label, for tests of scoring.

It has the vocabulary of a model that is there. Its scores are right for its weights, and mean nothing.

    python scripts/make_random_cross_encoder.py .models/all-minilm-l6-v2 .models/random-cross-encoder
"""

import argparse
import shutil
import tempfile
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="a BERT's folder, for its vocabulary")
    parser.add_argument("folder", type=Path, help="where the model folder goes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    folder: Path = given.folder

    import torch
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    tokenizer = AutoTokenizer.from_pretrained(given.tokenizer)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,  # of 32 each, the least that vLLM's kernel for CPUs takes
        intermediate_size=256,
        max_position_embeddings=512,
        num_labels=1,
        # Wide enough that scores of different pairs differ well.
        initializer_range=0.5,
    )
    torch.manual_seed(given.seed)
    model = BertForSequenceClassification(config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that an interrupted run leaves no half model behind.
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        model.save_pretrained(Path(scratch) / "model")
        tokenizer.save_pretrained(Path(scratch) / "model")
        shutil.rmtree(folder, ignore_errors=True)
        (Path(scratch) / "model").replace(folder)
    print(f"{folder}: {model.num_parameters():,} parameters, random")


if __name__ == "__main__":
    main()
