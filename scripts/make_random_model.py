"""Make a model folder of another size, with random weights: for capacity experiments, where no larger model is at hand.

It has the shape that is asked for and the tokenizer of a model that is there. What it costs to run is what a trained
model of that shape costs; what it answers is noise, mostly up to max_tokens.

    python scripts/make_random_model.py .models/smollm2-135m-instruct out/random-362m --layers 32 --hidden 960 \
        --intermediate 2560 --heads 15 --kv-heads 5
"""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=Path, help="a model folder, for its tokenizer and chat template")
    parser.add_argument("folder", type=Path, help="where the model folder goes")
    for name in ("layers", "hidden", "intermediate", "heads", "kv-heads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    config = AutoConfig.from_pretrained(given.tokenizer)
    config.num_hidden_layers = given.layers
    config.hidden_size = given.hidden
    config.intermediate_size = given.intermediate
    config.num_attention_heads = given.heads
    config.num_key_value_heads = given.kv_heads
    config.head_dim = given.hidden // given.heads
    torch.manual_seed(given.seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(given.folder)
    AutoTokenizer.from_pretrained(given.tokenizer).save_pretrained(given.folder)
    print(f"{given.folder}: {model.num_parameters():,} parameters, random")


if __name__ == "__main__":
    main()
